"""Counting: parameters and bytes of what is stored, what an engine allocates for it, and what a token makes it read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from checkpoint import Module, TensorRef
from checkpoint.dtypes import BITS, FLOATS

CONFIG_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Sizes:
    """`parameters` are the values of weights and biases, packed ones unpacked. Those of the `unknown` modules, whose
    packed widths nothing explains, are not counted. In bytes: `codes` are packed values, `scales` scales and zero
    points, `dense` plain tensors, `beside` the rest (`weight_shape`). `floats` of the plain values are floating point,
    in `float_bytes`."""

    parameters: int = 0
    unknown: int = 0
    codes: int = 0
    scales: int = 0
    dense: int = 0
    beside: int = 0
    floats: int = 0
    float_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.codes + self.scales + self.dense + self.beside

    def allocated(self, dtype: str | None) -> int:
        """Bytes of the parameters that vLLM makes for them on one GPU: packed as stored, plain floating point in the
        config's `dtype`, into which its loaders cast."""
        width = BITS[CONFIG_DTYPES[dtype]] // 8 if dtype in CONFIG_DTYPES else None
        plain = self.dense if width is None else self.dense - self.float_bytes + width * self.floats
        return self.codes + self.scales + self.beside + plain


def total(several: Iterable[Sizes]) -> Sizes:
    """Their sum."""
    listed = list(several)
    return Sizes(*(sum(getattr(one, field.name) for one in listed) for field in fields(Sizes)))


def sizes_of(modules: Iterable[Module], tensors: Mapping[str, TensorRef], layout: Mapping[str, Any]) -> Sizes:
    """What `modules`, which share the `layout` entry, hold."""
    found = dict.fromkeys((field.name for field in fields(Sizes)), 0)
    shape = layout.get("shape", ())
    packed = prod(shape) if layout["state"] == "packed" and shape and None not in shape else None
    for module in modules:
        for suffix, name in module.tensors.items():
            _count(found, suffix, tensors[name])
            if suffix == "weight_packed":
                found["parameters"] += packed or 0
                found["unknown"] += packed is None
    return Sizes(**found)


def _count(found: dict[str, int], suffix: str, ref: TensorRef) -> None:
    if suffix == "weight_packed":
        found["codes"] += ref.nbytes
    elif suffix in ("weight_scale", "weight_zero_point"):
        found["scales"] += ref.nbytes
    elif suffix in ("", "weight", "bias"):
        values = prod(ref.shape)
        found["parameters"] += values
        found["dense"] += ref.nbytes
        if ref.dtype in FLOATS:
            found["floats"] += values
            found["float_bytes"] += ref.nbytes
    else:
        found["beside"] += ref.nbytes
