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
    `known` is the shape of its weight by base or config, `kind` what the family calls it."""

    name: str
    parts: Mapping[str, TensorRef]
    scheme: Scheme | None
    known: tuple[int, ...] | None
    kind: str | None

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of the weight, if need be from the width that it was packed to."""
        if self.known is not None:
            return (self.known[0], self.known[1]) if len(self.known) == 2 else None
        packed = self.parts.get("weight_packed")
        if packed is None or len(packed.shape) != 2 or self.scheme is None or 32 % self.scheme.num_bits:
            return None
        return packed.shape[0], packed.shape[1] * 32 // self.scheme.num_bits

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]


def packed_modules(case: Case) -> Iterator[Packed]:
    """The modules that are stored packed; what is dense with leftovers beside it is none."""
    weights = case.inventory.weights if case.inventory else {}
    for module in case.modules.values():
        if module.packed and "weight" not in module.tensors:
            scheme = case.groups.scheme(module.name)
            wanted = weights.get(module.name)
            yield Packed(
                module.name,
                _parts(case, module),
                scheme if scheme and scheme.strategy in GROUPED else None,
                wanted.shape if wanted else None,
                case.family.kind(module.name) if case.family else None,
            )


def _parts(case: Case, module: Module) -> dict[str, TensorRef]:
    return {suffix: case.checkpoint.tensors[name] for suffix, name in module.tensors.items()}
