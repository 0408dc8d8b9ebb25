"""What the process that runs llm-compressor is told: one JSON file in the working folder.

Standard library alone: it is read by another Python, in which little but llm-compressor may be installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkpoint.folding import unfold

JOB = "job.json"
RESULT = "result.json"
COMPARISON = "comparison.json"
REFUSAL = "refusal.json"
CALIBRATION_SET = "calibration.safetensors"
EXPORT = "export"
LOG = "gptq.log"

SHARD_SIZE = "5GB"


@dataclass(frozen=True)
class Packed:
    """Modules, written as one folded pattern, and how they are packed. `group_size` is None for a scale a row."""

    pattern: str
    bits: int
    group_size: int | None
    symmetric: bool

    @property
    def names(self) -> list[str]:
        return list(unfold(self.pattern))


@dataclass(frozen=True)
class Job:
    """`groups` are config groups as compressed-tensors reads them; `actorder` is its name for the order of columns;
    `calibration` is a `Calibration`, spelled out. All paths are absolute: llm-compressor reads the base again when it
    saves, hours later."""

    base: str
    model_class: str
    groups: Mapping[str, Mapping[str, Any]]
    ignore: tuple[str, ...]
    modules: tuple[Packed, ...]
    dampening: float
    block_size: int
    actorder: str | None
    sequential_targets: tuple[str, ...]
    together: int
    calibrate_all_experts: bool
    calibration: Mapping[str, Any]

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def read(work: Path) -> Job:
        """The job in the working folder."""
        document = json.loads((work / JOB).read_text(encoding="utf-8"))
        document["modules"] = tuple(Packed(**packed) for packed in document["modules"])
        for key in ("ignore", "sequential_targets"):
            document[key] = tuple(document[key])
        return Job(**document)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Put `document` at `path`, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
