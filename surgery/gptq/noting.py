"""A calibrated export as a draft that says so: for the manifest, what llm-compressor was given and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from checkpoint import Checkpoint, Computed, Draft
from surgery.gptq.handover import Handover
from surgery.gptq.statistics import family_rows, settings_told
from surgery.gptq.taking_back import fallbacks


def noted(build: Handover, export: Checkpoint, result: Mapping[str, Any]) -> Draft:
    """The draft of `export`, its packed tensors marked as calibrated; `result` is what the driver left."""
    packed = frozenset(name for name, source in build.layout.tensors.items() if isinstance(source, Computed))
    modules, environment = result["modules"], result["environment"]
    parameters = {
        "title": build.recipe.title,
        "model_class": build.job.model_class,
        "settings": settings_told(build.job),
        "packages": dict(environment["packages"]),
        "accelerator": environment["accelerator"],
        "calibration": {
            "sha256": result["calibration"]["sha256"],
            "report": _placeless(result["calibration"]["report"]),
        },
        "rtn_fallbacks": fallbacks(modules),
        "families": [{key: row[key] for key in row if key != "seconds"} for row in family_rows(modules)],
    }
    schemes = ", ".join(dict.fromkeys(str(module.scheme) for module in build.modules))
    summary = f"{len(modules):,} modules to {schemes}, calibrated by llm-compressor"
    return Draft.of(export).noting("gptq", summary, parameters, sources={"base": build.base}, calibrated=packed)


def _placeless(value: Any) -> Any:
    """`value` with sources of text called by their file's name alone: a recipe may name them by where they lie."""
    if isinstance(value, list | tuple):
        return [_placeless(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: PurePath(one).name if key == "source" and isinstance(one, str) else _placeless(one)
        for key, one in value.items()
    }
