"""Which module owns a tensor, and whether that module is packed.

A module is the owner of a weight: `model.layers.0.mlp.up_proj` for `model.layers.0.mlp.up_proj.weight_packed`.
Parameters without a suffix (fused experts, `A_log`) own themselves under the suffix "".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

PACKED_SUFFIXES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
SUFFIXES = ("weight", "bias", *PACKED_SUFFIXES)


@dataclass(frozen=True)
class Module:
    """A module and its tensors: suffix -> full tensor name."""

    name: str
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def packed(self) -> bool:
        return any(suffix in self.tensors for suffix in PACKED_SUFFIXES)

    @property
    def dense(self) -> bool:
        return "weight" in self.tensors or "" in self.tensors


def split_name(tensor: str) -> tuple[str, str]:
    """(module, suffix) of a tensor name; the suffix is "" where the name is a parameter of its own."""
    module, _, leaf = tensor.rpartition(".")
    return (module, leaf) if module and leaf in SUFFIXES else (tensor, "")


def group_modules(names: Iterable[str]) -> dict[str, Module]:
    """Modules by name, in first-seen order."""
    modules: dict[str, Module] = {}
    for name in names:
        owner, suffix = split_name(name)
        module = modules.get(owner)
        if module is None:
            module = modules[owner] = Module(owner)
        module.tensors[suffix] = name
    return modules
