"""A plan in words: what happens to each shard, what it costs, which names come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from checkpoint.folding import fold
from checkpoint.plan import Plan, ShardPlan
from ckpt.output import Output, table
from ckpt.text import plural, size

ARITHMETIC = 200_000_000
"""Bytes of torch once it is loaded; the compiled kernel takes less. Measured with the CPU build of torch 2.13."""

SHOWN = 12
"""Lines of a kind before the rest is counted only."""


def show_plan(plan: Plan, output: Output, workers: int) -> None:
    """Print `plan` for people, or as one document."""
    output.result(document(plan, workers))
    for step in plan.draft.steps:
        output.line(f"{step.operation}: {step.summary}")
    output.line()
    for line in table(list(_rows(plan.shards)), right=frozenset({2, 3})):
        output.line(line)
    output.line()
    _show_names(output, "appear", plan.appearing)
    _show_names(output, "disappear", plan.disappearing)
    for name in _side_changes(plan):
        output.line(f"side file {name}")
    output.line(
        f"reads {size(plan.bytes_read)}, writes {size(plan.bytes_written)}, "
        f"peak memory about {size(peak_memory(plan, workers))}; nothing was written"
    )


def document(plan: Plan, workers: int) -> dict[str, Any]:
    """The plan for machines."""
    return {
        "steps": [{"operation": step.operation, "summary": step.summary} for step in plan.draft.steps],
        "shards": [
            {"name": s.name, "was": s.was, "action": s.action, "bytes": s.nbytes, "bytes_read": s.bytes_read}
            for s in plan.shards
        ],
        "removed_shards": list(plan.removed),
        "appearing": list(plan.appearing),
        "disappearing": list(plan.disappearing),
        "side_files": list(_side_changes(plan)),
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "buffer_bytes": plan.memory(workers),
        "peak_memory": peak_memory(plan, workers),
    }


def peak_memory(plan: Plan, workers: int) -> int:
    """Bytes that carrying out `plan` takes at its peak: this process as it is, the arithmetic's library, buffers."""
    return _resident() + (ARITHMETIC if any(True for _ in plan.works()) else 0) + plan.memory(workers)


def _resident() -> int:
    """Bytes that this process has taken so far. `getrusage` would tell of the process that started it, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def _rows(shards: Iterable[ShardPlan]) -> Iterator[tuple[str, ...]]:
    """A row for each shard that costs something; those that are linked under their own name share one."""
    shards = list(shards)
    linked = [shard for shard in shards if _stays(shard)]
    yield ("action", "shard", "bytes", "read")
    if linked:
        name = linked[0].name if len(linked) == 1 else plural(len(linked), "shard")
        yield ("linked", name, size(sum(shard.nbytes for shard in linked)), "-")
    for shard in shards:
        if not _stays(shard):
            name = shard.name if shard.was in (None, shard.name) else f"{shard.name} (was {shard.was})"
            yield (shard.action, name, size(shard.nbytes), size(shard.bytes_read) if shard.bytes_read else "-")


def _stays(shard: ShardPlan) -> bool:
    return shard.action == "linked" and shard.name == shard.was


def _show_names(output: Output, verb: str, names: tuple[str, ...]) -> None:
    folded = fold((name, 0) for name in names)
    if folded:
        output.line(f"{plural(len(names), 'tensor')} {verb}{'s' if len(names) == 1 else ''}:")
    for entry in folded[:SHOWN]:
        output.line(f"  {entry.pattern}" + (f"  x{entry.count:,}" if entry.count > 1 else ""))
    if len(folded) > SHOWN:
        rest = sum(entry.count for entry in folded[SHOWN:])
        output.line(f"  and {rest:,} more (all of them with --json)")


def _side_changes(plan: Plan) -> Iterator[str]:
    """Side files that are not simply carried along."""
    before, after = plan.draft.origin.side_files, plan.draft.side_files
    if after is before:
        return
    for name, path in after.items():
        if name not in before:
            yield f"{name}: added from {path.parent}"
        elif before[name] != path:
            yield f"{name}: replaced from {path.parent}"
    for name in before:
        if name not in after:
            yield f"{name}: removed"
