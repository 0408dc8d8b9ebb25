"""What calibration bought: errors of the outputs of GPTQ's and of rounded weights, on rows that neither has seen.

One pass of the BF16 model over held-back sequences. Each module is handed its true inputs X [N, in]; with its weight W
and another Q, the error is ||X (Q - W)^T|| relative to ||X W^T||.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from checkpoint import Checkpoint, Files, Problem, Refused
from checkpoint.folding import fold
from surgery.gptq.job import Job, Packed
from surgery.rtn import quantize_rows
from surgery.scheme import Scheme
from verify.arithmetic import to_float32, unpack_columns, unpack_rows, values_of

if TYPE_CHECKING:
    import torch

MOST_TOKENS = 8192
"""Of all held-back sequences together, in the one pass."""

MOST_ROWS = 512
"""Inputs of a module that are looked at, spread over the tokens."""


@dataclass
class Sums:
    """Squared sizes over the rows that were looked at: of the true outputs, and of both errors."""

    rows: int = 0
    energy: float = 0.0
    gptq: float = 0.0
    rtn: float = 0.0


def compare(model: Any, job: Job, export: Checkpoint, held_back: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Errors by module of `export`, whose base `model` is, on the sequences of token ids. Raises Refused where a module
    is not packed in it."""
    import torch

    _check(export, job)
    sums = {name: Sums() for packed in job.modules for name in packed.names}
    batch = torch.tensor(_batch(held_back), device=model.device)
    with Files() as files, torch.no_grad():
        for packed in job.modules:
            for name in packed.names:
                stored = partial(_stored, export, files, name, packed)
                hook = partial(_see, sums[name], packed, stored)
                model.get_submodule(name).register_forward_pre_hook(hook)
        model.eval()(input_ids=batch, attention_mask=torch.ones_like(batch), use_cache=False, logits_to_keep=1)
    return {
        "sequences": len(batch),
        "tokens": batch.numel(),
        "modules": {name: vars(found) for name, found in sums.items()},
    }


def _check(export: Checkpoint, job: Job) -> None:
    names = (name for packed in job.modules for name in packed.names)
    absent = [name for name in names if f"{name}.weight_packed" not in export.tensors]
    if absent:
        remedy = "Give the export that the recipe makes"
        raise Refused(
            Problem("not-packed", "is not packed", str(export.root), folded.pattern, "packed", remedy)
            for folded in fold((name, 0) for name in absent)
        )


def _batch(held_back: Sequence[Sequence[int]]) -> list[list[int]]:
    """The sequences cut to the shortest, so that nothing need be padded; at most MOST_TOKENS."""
    length = min(MOST_TOKENS, *map(len, held_back))
    return [list(ids[:length]) for ids in held_back[: MOST_TOKENS // length]]


def _see(sums: Sums, packed: Packed, stored: Callable[[], Any], module: Any, arguments: tuple[Any, ...]) -> None:
    """Look at some of the inputs that `module` is about to be applied to."""
    import torch

    rows = arguments[0].reshape(-1, arguments[0].shape[-1])
    if not len(rows):
        return
    picked = torch.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows))).long()
    rows, weight = rows[picked.to(rows.device)].float(), module.weight.detach()
    rounded = torch.from_numpy(_rounded(weight.cpu(), packed))
    sums.rows += len(rows)
    sums.energy += _size(rows, weight)
    sums.gptq += _size(rows, torch.from_numpy(stored()).to(weight.device) - weight.float())
    sums.rtn += _size(rows, rounded.to(weight.device) - weight.float())


def _size(rows: torch.Tensor, weight: torch.Tensor) -> float:
    """||X W^T||^2."""
    return float((rows @ weight.float().T).double().square().sum())


def _rounded(weight: torch.Tensor, packed: Packed) -> Any:
    """The weight [R, C] after round-to-nearest, in F32."""
    half = 1 << (packed.bits - 1)
    codes, scale, zeros = quantize_rows(weight, Scheme(packed.bits, packed.group_size, packed.symmetric), "fp32")
    shift = None if zeros is None else zeros.float().numpy() - half
    signed = codes.int().numpy() - half
    return values_of(signed, scale.float().numpy(), shift, packed.group_size or weight.shape[1])


def _stored(export: Checkpoint, files: Files, name: str, packed: Packed) -> Any:
    """The weight [R, C] that `export` stores packed, in F32."""
    import numpy as np

    def raw(part: str) -> Any:
        ref = export.tensors[f"{name}.{part}"]
        return np.frombuffer(files.read(ref.path, ref.offset, ref.nbytes), np.uint8), ref

    scales, scale_ref = raw("weight_scale")
    rows, groups = scale_ref.shape
    scale = to_float32(scales, scale_ref.dtype).reshape(rows, groups)
    columns = int(raw("weight_shape")[0].view("<i8")[1])
    codes = unpack_rows(raw("weight_packed")[0].reshape(rows, -1), packed.bits, columns)
    zeros = None
    if not packed.symmetric:
        words, zero_ref = raw("weight_zero_point")
        zeros = unpack_columns(words.reshape(*zero_ref.shape, 4), packed.bits, rows).astype(np.float32)
    return values_of(codes, scale, zeros, columns // groups)
