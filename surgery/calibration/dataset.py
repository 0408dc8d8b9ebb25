"""The finished set of sequences, and the form that llm-compressor takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint.errors import require
from surgery.calibration.report import Report

Ids = tuple[int, ...]
Row = dict[str, list[int]]


@dataclass(frozen=True)
class CalibrationSet:
    """Token ids to calibrate with, and `held_back` ones to compare with later, of conversations that the first do not
    have. `record` states what they were made from: recipe, seed, SHA-256 of sources, tokenizer and template, versions.
    """

    sequences: tuple[Ids, ...] = field(repr=False)
    held_back: tuple[Ids, ...] = field(repr=False)
    report: Report = field(repr=False)
    record: Mapping[str, Any] = field(repr=False)

    @property
    def sha256(self) -> str:
        """Of all ids, as the JSON text `[[[1,2],[3]],[]]`: the sequences to calibrate with, then those held back."""
        return hashlib.sha256(json.dumps([self.sequences, self.held_back], separators=(",", ":")).encode()).hexdigest()


def rows_of(sequences: Sequence[Ids]) -> list[Row]:
    """`input_ids` and `attention_mask` of each sequence, the mask all ones: nothing is padded."""
    return [{"input_ids": list(ids), "attention_mask": [1] * len(ids)} for ids in sequences]


def as_dataset(sequences: Sequence[Ids]) -> Any:
    """The sequences as a `datasets.Dataset`, which `oneshot` takes as it is because it has `input_ids`.

    Give `oneshot` also `num_calibration_samples=len(sequences)`, since it takes 512 otherwise, and batches of one:
    larger ones are cut to their shortest sequence. Raises MissingExtra.
    """
    require("calibration", "datasets", extra="gptq")
    from datasets import Dataset

    return Dataset.from_list(rows_of(sequences))
