"""All defects, by subject."""

from __future__ import annotations

from collections.abc import Mapping

from defects import configs, contents, drafts, files, matching, packed, reports, side, tensors
from defects.build import Defect

SUBJECTS: Mapping[str, list[Defect]] = {
    "Fifteen public reports": reports.ALL,
    "Files, headers, index and names": files.ALL,
    "Tensors missing, besides, misshapen": tensors.ALL,
    "Packed modules": packed.ALL,
    "quantization_config": configs.ALL,
    "Targets and ignore list": matching.ALL,
    "MTP head, output head, running engines": drafts.ALL,
    "config.json and side files": side.ALL,
    "Contents": contents.ALL,
}

CORPUS: tuple[Defect, ...] = tuple(defect for table in SUBJECTS.values() for defect in table)
