"""What is stored, counted: parameters and bytes of every entry of the layout document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from checkpoint import Checkpoint, TensorRef
from checkpoint.folding import unfold
from checkpoint.modules import SUFFIXES
from costs.parts import Part, part_of

SCALES = ("weight_scale", "weight_zero_point")
PLAIN = ("", "weight", "bias")


@dataclass(frozen=True)
class Sizes:
    """`parameters` are the values of weights and biases, packed ones unpacked. Those of the `unknown` modules, whose
    packed widths nothing explains, are not counted. In bytes: `codes` are packed values, `scales` scales and zero
    points, `dense` plain tensors, `beside` the rest (`weight_shape`)."""

    parameters: int = 0
    unknown: int = 0
    codes: int = 0
    scales: int = 0
    dense: int = 0
    beside: int = 0

    @property
    def nbytes(self) -> int:
        return self.codes + self.scales + self.dense + self.beside

    def times(self, count: int) -> Sizes:
        """`count` of the same."""
        return Sizes(*(getattr(self, field.name) * count for field in fields(Sizes)))


@dataclass(frozen=True)
class Entry:
    """`count` modules that are stored alike: an entry of the layout document. `tensors` are those of its first module,
    called `name`, by suffix."""

    part: Part
    pattern: str
    name: str
    layout: Mapping[str, Any]
    tensors: Mapping[str, TensorRef]
    sizes: Sizes

    @property
    def packed(self) -> bool:
        return bool(self.layout["state"] == "packed")

    @property
    def count(self) -> int:
        return int(self.layout["count"])


def total(several: Iterable[Sizes]) -> Sizes:
    """Their sum."""
    listed = list(several)
    return Sizes(*(sum(getattr(one, field.name) for one in listed) for field in fields(Sizes)))


def entries(checkpoint: Checkpoint, document: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Every entry of the checkpoint's layout `document`. Modules of one entry have the same dtypes, shapes and bytes,
    so the first of them is looked at."""
    return tuple(_entry(checkpoint.tensors, pattern, one) for pattern, one in document["modules"].items())


def _entry(known: Mapping[str, TensorRef], pattern: str, layout: Mapping[str, Any]) -> Entry:
    name = next(unfold(pattern))
    names = {suffix: f"{name}.{suffix}" if suffix else name for suffix in ("", *SUFFIXES)}
    tensors = {suffix: known[full] for suffix, full in names.items() if full in known}
    return Entry(part_of(pattern), pattern, name, layout, tensors, _sizes(tensors, layout).times(layout["count"]))


def _sizes(tensors: Mapping[str, TensorRef], layout: Mapping[str, Any]) -> Sizes:
    """What one module holds."""
    found = dict.fromkeys((field.name for field in fields(Sizes)), 0)
    for suffix, ref in tensors.items():
        kind = "codes" if suffix == "weight_packed" else "scales" if suffix in SCALES else "beside"
        found["dense" if suffix in PLAIN else kind] += ref.nbytes
        if suffix in PLAIN:
            found["parameters"] += prod(ref.shape)
    if "weight_packed" in tensors:
        shape = layout.get("shape", ())
        known = bool(shape) and None not in shape and layout["state"] == "packed"
        found["parameters"] += prod(shape) if known else 0
        found["unknown"] += not known
    return Sizes(**found)
