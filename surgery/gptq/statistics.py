"""What a run did, as a document: `schemas/gptq_statistics.schema.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkpoint.folding import fold, unfold
from surgery.gptq.handover import Handover
from surgery.gptq.job import Job
from surgery.gptq.taking_back import fallbacks

VERSION = 1


def statistics(build: Handover, result: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> dict[str, Any]:
    """`result` and `comparison` are what the driver left."""
    modules = result["modules"]
    job = build.job
    return {
        "version": VERSION,
        "title": build.recipe.title,
        "base": job.base,
        "model_class": job.model_class,
        "settings": settings_told(job),
        "environment": result["environment"],
        "calibration": result["calibration"],
        "seconds": result["seconds"],
        "hessian_bytes": result["hessian_bytes"],
        "peak_memory": result["peak_memory"],
        "rtn_fallbacks": fallbacks(modules),
        "families": family_rows(modules),
        "modules": modules,
        "comparison": comparison and compared(comparison),
    }


def settings_told(job: Job) -> dict[str, Any]:
    """What llm-compressor was given, in its own words."""
    return {
        "groups": job.groups,
        "ignore": list(job.ignore),
        "dampening": job.dampening,
        "block_size": job.block_size,
        "actorder": job.actorder,
        "sequential_targets": list(job.sequential_targets),
        "targets_per_subgraph": job.together,
        "calibrate_all_experts": job.calibrate_all_experts,
    }


def family_rows(modules: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was recorded, modules that differ in numbers alone together."""
    rows = []
    for pattern, names in _families(modules):
        records = [modules[name] for name in names]
        errors = [record["error"] for record in records if record["error"] is not None]
        rows.append(
            {
                "pattern": pattern,
                "count": len(names),
                "loss": sum(record["loss"] for record in records),
                "error_mean": sum(errors) / len(errors) if errors else None,
                "error_worst": max(errors, default=None),
                "seconds": sum(record["seconds"] for record in records),
                "dead_columns": sum(record["dead"] for record in records),
                "rtn_fallbacks": sum(record["fallback"] for record in records),
            }
        )
    return rows


def compared(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison with round-to-nearest, by family and as a whole."""
    modules = {name: _errors(sums) for name, sums in comparison["modules"].items()}
    return {
        "sequences": comparison["sequences"],
        "tokens": comparison["tokens"],
        "all": _mean(modules.values()),
        "families": [
            {"pattern": pattern, **_mean(modules[name] for name in names)} for pattern, names in _families(modules)
        ],
        "modules": modules,
    }


def _errors(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Relative errors of one module; None where it had no input, or none other than 0."""
    energy = sums["energy"]
    errors = {way: (sums[way] / energy) ** 0.5 if energy > 0 else None for way in ("gptq", "rtn")}
    return {"rows": sums["rows"], **errors}


def _mean(modules: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the modules that had inputs; in how many of them GPTQ is the worse."""
    listed = list(modules)
    seen = [one for one in listed if one["gptq"] is not None]
    means = {way: sum(one[way] for one in seen) / len(seen) if seen else None for way in ("gptq", "rtn")}
    worse = sum(one["gptq"] > one["rtn"] for one in seen)
    return {"count": len(listed), "unseen": len(listed) - len(seen), "worse": worse, **means}


def _families(names: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    return ((folded.pattern, list(unfold(folded.pattern))) for folded in fold((name, 0) for name in names))
