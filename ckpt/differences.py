"""A comparison as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from checkpoint.errors import brief
from checkpoint.folding import fold
from ckpt.output import table
from ckpt.text import plural, size

if TYPE_CHECKING:
    from compare import Result, Sums
    from compare.documents import Change, SideFile
    from compare.grouping import Row
    from compare.weights import Weight

MOST = 20
"""Names, files or members that are listed of a kind; the JSON document has them all."""

HEAD = ("error", "SQNR dB", "max", "max/|A|", "at ends", "zero groups")


def lines(result: Result, *, layers: bool = False) -> Iterator[str]:
    """All of it, the sum first."""
    yield f"A  {result.a}"
    yield f"B  {result.b}"
    yield summary(result)
    yield _reading(result)
    yield from _families(result)
    if layers:
        yield from _layers(result)
    yield from _worst(result)
    yield from _unmeasured(result)
    yield from _alone("only in A", result.removed)
    yield from _alone("only in B", result.added)
    yield from _side_files(result.side_files)
    yield from _documents(result)


def summary(result: Result) -> str:
    """`272 weights in both: 210 changed, 62 equal; 3 only in A`"""
    counts = result.counts.copy()
    recast = sum(entry.state == "not read" and not entry.pair.is_same_form for entry in result.entries)
    counts["not read, stored alike"] = counts.pop("not read", 0) - recast
    counts["not read, stored otherwise"] = recast
    states = [f"{count:,} {state}" for state, count in counts.most_common() if count]
    text = f"{plural(len(result.entries), 'weight')} in both" + (f": {'; '.join(states)}" if states else "")
    alone = (("A", result.removed), ("B", result.added))
    text += "".join(f"; {len(weights):,} only in {side}" for side, weights in alone if weights)
    return text + ("" if result.is_different else "; nothing differs")


def _reading(result: Result) -> str:
    """What was read, and what was not."""
    unread = {"the same file": result.known["file"], "the same hash": result.known["hash"]}
    known = [f"{size(nbytes)} unread, {why} in both" for why, nbytes in unread.items() if nbytes]
    level = {"headers": "headers only; ", "sample": "a sample: what is equal is so as far as was read; ", "full": ""}
    return level[result.level] + "; ".join([f"{size(result.read)} read", *known])


def _families(result: Result) -> Iterator[str]:
    from compare.grouping import by_family, row_of

    rows = {name: row_of(entries) for name, entries in by_family(result.entries).items()}
    shown = [(name, row) for name, row in rows.items() if row.changed or any(a != b for a, b in row.forms)]
    if not shown:
        return
    body = [(name, _forms(row), _share(row), *_measure(row.sums)) for name, row in shown]
    if result.total and len(result.measured) > 1 and len(shown) > 1:
        body.append(("all that changed", "", f"{len(result.measured):,}", *_measure(result.total)))
    yield ""
    yield from table([("not equal", "A -> B", "changed", *HEAD), *body], right=frozenset(range(2, 9)))


def _layers(result: Result) -> Iterator[str]:
    from compare.grouping import by_layer, row_of

    rows = {layer: row_of(entries) for layer, entries in by_layer(result.entries).items()}
    body = [
        (f"{stack}.{number}", _share(row), *_measure(row.sums)) for (stack, number), row in rows.items() if row.sums
    ]
    if body:
        yield ""
        yield from table([("layer", "changed", *HEAD), *body], right=frozenset(range(1, 8)))


def _worst(result: Result) -> Iterator[str]:
    if len(result.measured) > 1:
        yield ""
        body = [(entry.name, *_measure(entry.sums)) for entry in result.worst]
        yield from table([("worst", *HEAD), *body], right=frozenset(range(1, 7)))


def _unmeasured(result: Result) -> Iterator[str]:
    """What counts as changed for another reason than its values, folded."""
    found = [entry for entry in result.entries if entry.state == "changed" and entry.why]
    reasons = fold((entry.name, f"{entry.pair.a.form} -> {entry.pair.b.form}: {entry.why}") for entry in found)
    yield from _listed("changed", [f"{one.pattern}: {one.state}" for one in reasons])


def _alone(title: str, weights: Sequence[Weight]) -> Iterator[str]:
    folded = fold((weight.name, weight.form) for weight in weights)
    yield from _listed(title, [f"{one.pattern}: {one.state}{_times(one.count)}" for one in folded])


def _side_files(files: Iterable[SideFile]) -> Iterator[str]:
    files = list(files)
    equal = sum(file.state == "equal" for file in files)
    marks = {"added": "+", "removed": "-", "changed": "~"}
    found = [f"{marks[file.state]} {file.name}: {_sizes(file)}" for file in files if file.state in marks]
    yield from _listed(f"side files, {equal:,} equal", found, always=bool(files))


def _sizes(file: SideFile) -> str:
    sizes = [size(nbytes) for nbytes in (file.a, file.b) if nbytes is not None]
    return " -> ".join(sizes) if len(set(sizes)) > 1 or len(sizes) == 1 else f"{sizes[0]} in both"


def _documents(result: Result) -> Iterator[str]:
    config, index = result.config, result.index
    yield from _listed(f"config.json, {config.state}", list(map(_change, config.changes)), always=True)
    moved = [f"{plural(index.moved, 'tensor')} in a shard of another name"] if index.moved else []
    yield from _listed(f"index, {index.state}", [*map(_change, index.metadata), *moved], always=True)


def _change(change: Change) -> str:
    from compare.documents import ABSENT
    from schemas.validation import readable_path

    path = readable_path(change.path)
    if change.a is ABSENT:
        return f"+ {path}: {brief(change.b)}"
    if change.b is ABSENT:
        return f"- {path}: {brief(change.a)}"
    if isinstance(change.a, list) and isinstance(change.b, list):
        gone, come = ([one for one in x if one not in y] for x, y in ((change.a, change.b), (change.b, change.a)))
        return f"~ {path}: without {brief(gone)}, with {brief(come)}"
    return f"~ {path}: {brief(change.a)} -> {brief(change.b)}"


def _listed(title: str, found: Sequence[str], *, always: bool = False) -> Iterator[str]:
    if not found and not always:
        return
    yield ""
    yield f"{title}{':' if found else ''}"
    yield from (f"  {line}" for line in found[:MOST])
    if len(found) > MOST:
        yield f"  and {len(found) - MOST:,} more (see --json)"


def _forms(row: Row) -> str:
    shown = [a if a == b else f"{a} -> {b}" for a, b in row.forms]
    return ", ".join(shown[:2]) + (", ..." if len(shown) > 2 else "")


def _share(row: Row) -> str:
    return f"{row.changed:,} of {row.count:,}"


def _measure(sums: Sums | None) -> tuple[str, ...]:
    """The columns of `HEAD`."""
    if sums is None:
        return ("",) * len(HEAD)
    if not sums.is_finite:
        return ("not finite", *("",) * (len(HEAD) - 1))
    sqnr = f"{sums.sqnr:.1f}" if isfinite(sums.sqnr) else ""
    ends = "" if sums.saturation is None else f"{100 * sums.saturation:.2f} %"
    zero = f"{sums.zero:,}" + (f", {sums.lost:,} not in A" if sums.lost else "") if sums.groups else ""
    return f"{sums.relative:.3g}", sqnr, f"{sums.largest_error:.3g}", f"{sums.largest_relative:.3g}", ends, zero


def _times(count: int) -> str:
    return f" ({count:,} of them)" if count > 1 else ""
