"""A weight as one checkpoint stores it, under the name that it has while dense, so that dense and packed meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from checkpoint import Module, TensorRef, group_modules, split_name
from checkpoint.dtypes import FLOATS
from checkpoint.families import find_family
from checkpoint.quantization import quantization_config
from verify.arithmetic import SUPPORTED_BITS, Grid
from verify.groups import GroupTable, Scheme, group_table

DENSE = ""
"""The suffix of the only part of a dense weight."""

SPLIT_BY_ROWS = ("weight_packed", "weight_scale", "weight_zero_point")
"""The parts of a packed weight that hold its values."""

SHAPE = "weight_shape"

WORD = 32

Tensors = Mapping[str, TensorRef]


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored weight or parameter. `parts` are its tensors by suffix, a dense one alone under `DENSE`.

    `shape` is that of its values, None where it cannot be told. `grid` says how packed ones are unpacked; `why` says
    what stands against reading values, None if nothing does.
    """

    name: str
    parts: Mapping[str, TensorRef]
    shape: tuple[int, ...] | None
    grid: Grid | None = None
    why: str | None = None

    @property
    def is_packed(self) -> bool:
        return DENSE not in self.parts

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self.parts.values())

    @property
    def form(self) -> str:
        """`BF16 [512, 2048]`, `INT4 g32 [512, 2048]`"""
        return self.storage if self.shape is None else f"{self.storage} {list(self.shape)}"

    @property
    def storage(self) -> str:
        """`BF16`, `INT4 g32`, `INT8 channel asymmetric`"""
        if not self.is_packed:
            return self.parts[DENSE].dtype
        if self.grid is None:
            return "packed"
        grouping = "channel" if self.shape and self.grid.group == self.shape[-1] else f"g{self.grid.group}"
        return f"INT{self.grid.bits} {grouping}" + ("" if self.grid.symmetric else " asymmetric")


def dense(ref: TensorRef) -> Weight:
    """A tensor by itself."""
    why = None if ref.dtype in FLOATS else f"{ref.dtype} values are compared by their bytes alone"
    return Weight(ref.name, {DENSE: ref}, ref.shape, why=why)


def weights_of(tensors: Tensors, other: Tensors, config: Mapping[str, Any]) -> dict[str, Weight]:
    """Every weight of `tensors` by its dense name; what is packed may be packed from a dense one of `other`."""
    table = group_table(quantization_config(config), find_family(config))
    modules = group_modules(tensors).values()
    return {weight.name: weight for module in modules for weight in _weights(tensors, module, table, other)}


def _weights(tensors: Tensors, module: Module, table: GroupTable, other: Tensors) -> list[Weight]:
    """The packed weight of a module if it has one, and its other tensors each by itself."""
    refs = {suffix: tensors[name] for suffix, name in module.tensors.items()}
    if "weight_packed" not in refs or "weight" in refs:
        return [dense(ref) for ref in refs.values()]
    name = f"{module.name}.weight"
    own = {suffix: ref for suffix, ref in refs.items() if suffix.startswith("weight_")}
    known = other[name].shape if name in other else None
    return [
        packed_weight(name, own, table.scheme(module.name), known),
        *(dense(ref) for suffix, ref in refs.items() if suffix not in own),
    ]


def packed_weight(
    name: str, parts: Mapping[str, TensorRef], scheme: Scheme | None, known: tuple[int, ...] | None
) -> Weight:
    """A packed weight by the shapes of its parts; `known` is that of the dense weight on the other side, if any."""
    packed, scale = parts["weight_packed"], parts.get("weight_scale")
    stray = sorted(set(parts) - {*SPLIT_BY_ROWS, SHAPE})
    if stray or scale is None:
        return Weight(name, parts, None, why=f"{stray[0]} is there" if stray else "weight_scale is not there")
    if packed.dtype != "I32" or len(packed.shape) != 2 or len(scale.shape) != 2 or scale.dtype not in FLOATS:
        found = f"{packed.dtype} {list(packed.shape)} with scales {scale.dtype} {list(scale.shape)}"
        return Weight(name, parts, None, why=f"packed as {found}")
    bits, columns = _size(packed.shape[1], scale.shape[1], scheme, known)
    if bits is None or columns is None:
        return Weight(name, parts, None, why="neither config nor shapes tell in how many bits it is packed")
    return _gridded(name, parts, bits, columns)


def _gridded(name: str, parts: Mapping[str, TensorRef], bits: int, columns: int) -> Weight:
    packed, scale, zero = parts["weight_packed"], parts["weight_scale"], parts.get("weight_zero_point")
    rows, groups = packed.shape[0], scale.shape[1]
    shape = (rows, columns)
    if bits not in SUPPORTED_BITS:
        return Weight(name, parts, shape, why=f"packed in {bits} bits")
    zeros = None if zero is None else (zero.dtype, zero.shape)
    fits = scale.shape[0] == rows and groups > 0 and columns % groups == 0
    fits &= packed.shape[1] == _words(columns, bits)
    fits &= zeros in (None, ("I32", (_words(rows, bits), groups)))
    if not fits or not prod(shape):
        return Weight(name, parts, shape, why="its parts do not fit each other")
    return Weight(name, parts, shape, Grid(scale.dtype, bits, columns // groups, zero is None))


def _size(
    words: int, groups: int, scheme: Scheme | None, known: tuple[int, ...] | None
) -> tuple[int | None, int | None]:
    """(bits, columns) of a packed row. What the config says holds if it fits the width, else what the width allows."""
    claimed = scheme.num_bits if scheme else None
    if known is not None and len(known) == 2:
        possible = [bits for bits in SUPPORTED_BITS if _words(known[1], bits) == words]
        if claimed in possible or len(possible) == 1:
            return (claimed if claimed in possible else possible[0]), known[1]
    if claimed is None:
        return None, None
    grouped = groups * (scheme.group_size or 0) if scheme else 0
    return claimed, grouped if grouped and _words(grouped, claimed) == words else words * WORD // claimed


def _words(values: int, bits: int) -> int:
    return -(-values * bits // WORD)


def raw_parts(weight: Weight) -> list[Weight]:
    """The tensors of a weight, each by itself under its own name."""
    return [dense(ref) for ref in weight.parts.values()]


def module_of(name: str) -> str:
    """The module that a weight of this name belongs to."""
    return split_name(name)[0]
