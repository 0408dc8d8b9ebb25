"""A calibration set as one safetensors file: ids one after another, where each sequence ends, record and report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint import Problem, Refused, encode_header, read_header
from checkpoint.wholefile import write_whole
from surgery.calibration.dataset import CalibrationSet, Ids
from surgery.calibration.report import Report

if TYPE_CHECKING:
    from checkpoint import TensorRef

VERSION = "1"
SPLITS = ("calibration", "held_back")
"""Each is `SPLIT.input_ids`, I32 [tokens], and `SPLIT.ends`, I64 [sequences]: sequence n ends before `ends[n]`."""


def write_set(built: CalibrationSet, path: Path) -> None:
    """Write `built` to the new file `path`, whole or not at all; the same set gives the same bytes.

    Refuses a file that exists. Raises WriteFailed.
    """
    if path.exists():
        raise Refused(Problem("target-exists", "exists", str(path), remedy="Give a new name to --out"))
    write_whole(_encoded(built), path, "set-unwritable")


def read_set(path: Path) -> CalibrationSet:
    """The set in `path`. Raises UnreadableCheckpoint for a file that is no safetensors file, Refused for one that holds
    something else."""
    header = read_header(path)
    try:
        metadata = header.metadata or {}
        if metadata["ckpt_calibration"] != VERSION:
            raise ValueError(f"version {metadata['ckpt_calibration']!r}")
        sequences, held_back = (tuple(_sequences(header.tensors, split)) for split in SPLITS)
        report = Report.of(json.loads(metadata["report"]))
        return CalibrationSet(sequences, held_back, report, json.loads(metadata["record"]))
    except (KeyError, TypeError, ValueError) as error:
        expected, remedy = "a calibration set", "Write it with ckpt calibrate"
        found = f"holds none that can be read: {error}"
        raise Refused(Problem("set-invalid", found, str(path), expected=expected, remedy=remedy)) from error


def _encoded(built: CalibrationSet) -> bytes:
    import numpy as np

    arrays = {}
    for split, sequences in zip(SPLITS, (built.sequences, built.held_back), strict=True):
        flat = [token for ids in sequences for token in ids]
        arrays[f"{split}.input_ids"] = ("I32", np.array(flat, dtype="<i4"))
        arrays[f"{split}.ends"] = ("I64", np.array(list(accumulate(map(len, sequences))), dtype="<i8"))
    aligned = sorted(arrays, key=lambda name: arrays[name][0], reverse=True)  # wider numbers first
    metadata = {"ckpt_calibration": VERSION, "record": _json(built.record), "report": _json(built.report.document())}
    header = encode_header(
        ((name, arrays[name][0], arrays[name][1].shape, arrays[name][1].nbytes) for name in aligned), metadata
    )
    return header + b"".join(arrays[name][1].tobytes() for name in aligned)


def _json(document: Mapping[str, object]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _sequences(tensors: Mapping[str, TensorRef], split: str) -> Iterator[Ids]:
    ids, ends = _numbers(tensors[f"{split}.input_ids"], "I32"), _numbers(tensors[f"{split}.ends"], "I64")
    bounds = [0, *ends]
    if bounds[-1] != len(ids) or any(begin >= end for begin, end in pairwise(bounds)):
        raise ValueError(f"{split}.ends do not divide {len(ids)} ids")
    for begin, end in pairwise(bounds):
        yield tuple(ids[begin:end])


def _numbers(tensor: TensorRef, dtype: str) -> Sequence[int]:
    import numpy as np

    if tensor.dtype != dtype:
        raise ValueError(f"{tensor.name} is {tensor.dtype}")
    count = tensor.shape[0]
    array = np.fromfile(str(tensor.path), {"I32": "<i4", "I64": "<i8"}[dtype], count, offset=tensor.offset)
    numbers: list[int] = array.tolist()
    return numbers
