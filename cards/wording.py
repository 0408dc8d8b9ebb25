"""Numbers and lists as a card writes them."""

from __future__ import annotations

from collections.abc import Sequence

DECIMAL = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size(nbytes: int) -> str:
    """`16.61 GB`: decimal units, two places."""
    return _scaled(nbytes, DECIMAL)


def both_sizes(nbytes: int) -> str:
    """`16.61 GB (15.47 GiB)`: decimal units, and binary ones, in which GPUs are sold."""
    return f"{size(nbytes)} ({_scaled(nbytes, BINARY)})" if nbytes >= BINARY[-1][1] else size(nbytes)


def billions(count: int) -> str:
    """`35.95 B`, `134.5 M`; small counts whole."""
    for unit, scale in (("B", 10**9), ("M", 10**6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:,}"


def share(part: int, whole: int) -> str:
    """`89.6 %`."""
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def plural(count: int, noun: str) -> str:
    """`1 shard`, `26 shards`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _scaled(nbytes: int, units: Sequence[tuple[str, int]]) -> str:
    for unit, scale in units:
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:,} B"
