"""Is what arrived what was checked? Asked of the Hub, at the commit that was made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpoint import Checkpoint, Problem, TensorRef
from ckpt.hub.delivery import Delivery, is_same
from ckpt.hub.repository import files_at

if TYPE_CHECKING:
    from verify import Finding, Report

STORED = ("dtype", "shape", "offset", "nbytes")


def file_differences(delivery: Delivery, commit: str) -> list[Problem]:
    """Files at `commit` that are not there, not as they were checked, or still there. Raises HubFailed."""
    found = files_at(delivery.remote.repo, commit)
    problems = []
    for item in delivery.items:
        entry = found.get(item.name)
        if entry is None:
            problems.append(Problem("not-arrived", "is not there", item.name))
        elif not is_same(item, entry):
            stored, ours = entry.sha256 or entry.blob, item.sha256 if entry.sha256 else item.blob
            told = f"{entry.size:,} bytes, {stored[:16]}..."
            problems.append(
                Problem("arrived-other", told, item.name, expected=f"{item.size:,} bytes, {ours or ''}"[:60])
            )
    expected = {".gitattributes", *(item.name for item in delivery.items), *delivery.kept}  # the Hub writes that one
    problems += [Problem("not-deleted", "is there", name, expected="no such file") for name in set(found) - expected]
    return problems


def header_differences(ours: Checkpoint, theirs: Checkpoint) -> Iterator[Problem]:
    """Tensors whose headers, read back from the Hub, are not those that were checked; what else cannot be read."""
    known = set(ours.problems)
    yield from (problem for problem in theirs.problems if problem not in known)
    for name in ours.shards.keys() | theirs.shards.keys():
        mine = ours.shards[name].tensors if name in ours.shards else {}
        there = theirs.shards[name].tensors if name in theirs.shards else {}
        for tensor in sorted(mine.keys() | there.keys()):
            if _stored(mine.get(tensor)) != _stored(there.get(tensor)):
                yield Problem("header-differs", _shown(there.get(tensor)), name, tensor, _shown(mine.get(tensor)))


def finding_differences(expected: Report, found: Report) -> list[Finding]:
    """What `verify` finds on the Hub and did not expect there, or the other way round."""
    before, there = _keys(expected), _keys(found)
    return [there[key] for key in there if key not in before] + [before[key] for key in before if key not in there]


def _keys(report: Report) -> dict[tuple[str, str, str, str], Finding]:
    return {(one.rule, one.severity, one.place, one.found): one for one in report.findings}


def _stored(ref: TensorRef | None) -> tuple[object, ...] | None:
    return None if ref is None else tuple(getattr(ref, field) for field in STORED)


def _shown(ref: TensorRef | None) -> str:
    return "nothing" if ref is None else f"{ref.dtype} {list(ref.shape)}, {ref.nbytes:,} bytes at {ref.offset:,}"
