"""The calibration set, made in the environment that has the tokenizer's library, before the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surgery.calibration import Calibration, CalibrationSet, SourceSpec, build_calibration, read_set, write_set
from surgery.gptq.job import CALIBRATION_SET, Job


def spelled(calibration: Calibration) -> dict[str, Any]:
    """The calibration as JSON can hold it, its paths absolute."""
    sources = [{**asdict(source), "path": str(source.path.absolute())} for source in calibration.sources]
    return {**asdict(calibration), "sources": sources}


def calibration_set(job: Job, work: Path) -> CalibrationSet:
    """The set that the job asks for, and the file of it in `work`. Raises Refused, MissingExtra."""
    path = work / CALIBRATION_SET
    if path.exists():
        return read_set(path)
    built = build_calibration(_calibration(job.calibration), Path(job.base))
    write_set(built, path)
    return built


def _calibration(document: Mapping[str, Any]) -> Calibration:
    sources = tuple(SourceSpec(**{**source, "path": Path(source["path"])}) for source in document["sources"])
    return Calibration(**{**document, "sources": sources})
