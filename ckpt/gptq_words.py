"""A calibrated build in words and numbers: the plan before, the record after, the comparison with round-to-nearest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from checkpoint.folding import fold
from ckpt.output import table
from ckpt.text import plural, size

if TYPE_CHECKING:
    from surgery.gptq import Handover


def document(build: Handover) -> dict[str, Any]:
    """The plan for machines."""
    from surgery.gptq import script

    needs, targets = build.needs, build.targets
    return {
        "title": build.recipe.title,
        "base": build.job.base,
        "modules": [
            {
                "pattern": one.pattern,
                "count": one.count,
                "rows": one.state[0],
                "columns": one.state[1],
                "scheme": one.state[2],
            }
            for one in _folded(build)
        ],
        "sequential_targets": list(targets.entries),
        "targets_per_subgraph": targets.together,
        "hessian_bytes": targets.hessian_bytes,
        "tokens": build.tokens,
        "memory": {"model": needs.model, "rows": needs.rows, "hessians": needs.hessians, "all": needs.memory},
        "disk": {"export": needs.export, "all": 2 * needs.export},
        "python": script(build.job),
    }


def plan_lines(build: Handover) -> Iterator[str]:
    """The plan for people."""
    from surgery.gptq import script

    needs, targets, calibration = build.needs, build.targets, build.calibration
    yield f"{build.recipe.title}, from {build.base.root}"
    rows: list[tuple[str, ...]] = [("modules", "weight", "scheme", "Hessian each", "count")]
    rows += [
        (one.pattern, f"{one.state[0]} x {one.state[1]}", one.state[2], size(one.state[1] ** 2 * 4), f"{one.count:,}")
        for one in _folded(build)
    ]
    yield from table(rows, right=frozenset({3, 4}))
    held = "not known: class names" if targets.hessian_bytes is None else f"at most {size(targets.hessian_bytes)}"
    yield f"at a time: {targets}"
    yield f"Hessians at a time: {held}; gptq.memory allows {size(build.settings.memory)}"
    least = "" if calibration.max_tokens == calibration.min_tokens else "at least "
    yield f"calibration: {calibration.sequences:,} sequences, {least}{build.tokens:,} tokens"
    yield (
        f"memory: about {size(needs.memory)}: model {size(needs.model)}, rows {size(needs.rows)}, "
        f"Hessians {size(needs.hessians)}"
    )
    yield f"disk: {size(needs.export)} for the raw export, as much for the result"
    yield "the same in Python:"
    yield from (f"    {line}" for line in script(build.job).splitlines())


def run_lines(statistics: Mapping[str, Any]) -> Iterator[str]:
    """What was recorded, by family of modules."""
    seconds = statistics["seconds"]
    yield (
        f"{plural(len(statistics['modules']), 'module')} calibrated in {seconds['calibrate']:.0f} s, "
        f"Hessians {size(statistics['hessian_bytes'])} at a time, peak memory {size(statistics['peak_memory'])}"
    )
    rows: list[tuple[str, ...]] = [("modules", "count", "error, mean", "worst", "dead columns")]
    rows += [
        (
            one["pattern"],
            f"{one['count']:,}",
            _percent(one["error_mean"]),
            _percent(one["error_worst"]),
            str(one["dead_columns"]),
        )
        for one in statistics["families"]
    ]
    yield from table(rows, right=frozenset({1, 2, 3, 4}))
    if statistics["rtn_fallbacks"]:
        yield f"rounded to nearest, as allowed: {plural(len(statistics['rtn_fallbacks']), 'module')}"
    if statistics["comparison"]:
        yield from comparison_lines(statistics["comparison"])


def comparison_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Errors of outputs on rows held back, by family."""
    yield (
        f"error of outputs on {plural(found['sequences'], 'sequence')} held back, {found['tokens']:,} tokens, "
        "relative to their size:"
    )
    rows: list[tuple[str, ...]] = [("modules", "count", "GPTQ", "RTN", "GPTQ worse", "no input")]
    rows += [
        (name, f"{one['count']:,}", _percent(one["gptq"]), _percent(one["rtn"]), str(one["worse"]), str(one["unseen"]))
        for name, one in (*((one["pattern"], one) for one in found["families"]), ("all", found["all"]))
    ]
    yield from table(rows, right=frozenset({1, 2, 3, 4, 5}))


def _folded(build: Handover) -> Any:
    return fold((module.name, (module.rows, module.columns, str(module.scheme))) for module in build.modules)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
