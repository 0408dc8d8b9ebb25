"""Every packed module once, with all that the rules on packed weights ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpoint import Module, TensorRef
from verify.groups import Scheme

if TYPE_CHECKING:
    from verify.case import Case

GROUPED = ("group", "channel")
"""The strategies that pack-quantized knows."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A module stored packed. `scheme` is what the config says of it, None if it says nothing that can be packed so;
    `known` is the shape of its weight by base or config, `size` its rows and columns, if need be from the width that it
    was packed to, `kind` what the family calls it."""

    name: str
    parts: Mapping[str, TensorRef]
    scheme: Scheme | None
    known: tuple[int, ...] | None
    size: tuple[int, int] | None
    kind: str | None

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]


def packed_modules(case: Case) -> Iterator[Packed]:
    """The modules that are stored packed; what is dense with leftovers beside it is none."""
    for module in case.modules.values():
        if module.packed and "weight" not in module.tensors:
            scheme = case.groups.scheme(module.name)
            scheme = scheme if scheme and scheme.strategy in GROUPED else None
            wanted, parts = case.weights.get(module.name), _parts(case, module)
            known = wanted.shape if wanted else None
            kind = case.family.kind(module.name) if case.family else None
            yield Packed(module.name, parts, scheme, known, _size(known, parts.get("weight_packed"), scheme), kind)


def _size(known: tuple[int, ...] | None, packed: TensorRef | None, scheme: Scheme | None) -> tuple[int, int] | None:
    if known is not None:
        return (known[0], known[1]) if len(known) == 2 else None
    if packed is None or len(packed.shape) != 2 or scheme is None or 32 % scheme.num_bits:
        return None
    return packed.shape[0], packed.shape[1] * 32 // scheme.num_bits


def _parts(case: Case, module: Module) -> dict[str, TensorRef]:
    return {suffix: case.checkpoint.tensors[name] for suffix, name in module.tensors.items()}
