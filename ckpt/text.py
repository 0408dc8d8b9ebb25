"""Numbers as people read them."""

from __future__ import annotations

UNITS = ("B", "kB", "MB", "GB", "TB")


def size(nbytes: float) -> str:
    """`1.69 GB`: decimal units, three digits."""
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.3g} {UNITS[unit]}"


def plural(count: int, noun: str) -> str:
    """`1 shard`, `26 shards`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
