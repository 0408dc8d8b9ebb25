"""What should be stored against what is: the names missing and the names besides, each left to one rule."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from checkpoint import Module, group_modules, split_name
from checkpoint.modules import PACKED_SUFFIXES
from verify.claims import Claims, claim, meant, nesting
from verify.descent import Wanted, wanted_from_base, wanted_from_spec

if TYPE_CHECKING:
    from verify.case import Case


@dataclass(frozen=True)
class Inventory:
    """The `wanted` tensors by the name they have while dense, and how the checkpoint departs from them.

    `missing` and `extra` hold names by the id of the rule that reports them.
    """

    source: Literal["base", "config"]
    wanted: Mapping[str, Wanted]
    missing: Claims
    extra: Claims

    @cached_property
    def weights(self) -> dict[str, Wanted]:
        """What is wanted, by module, of weights and bare parameters."""
        owners = ((split_name(name), one) for name, one in self.wanted.items())
        return {owner: one for (owner, suffix), one in owners if suffix in ("weight", "")}


def take_inventory(case: Case) -> Inventory | None:
    """The inventory against the base, else against the family's spec; None where there is neither."""
    named, modules = case.named, case.named_modules
    if any(map(nesting, named)):
        named = dict.fromkeys(map(meant, named))
        modules = group_modules(named)
    if case.base is not None:
        wanted = wanted_from_base(case.base, case.family, modules)
    elif case.spec is not None:
        wanted = wanted_from_spec(case.spec, modules)
    else:
        return None
    missing = [name for name, one in wanted.items() if not one.optional and not _is_stored(name, named, modules)]
    extra = [name for name in case.checkpoint.tensors if not _is_wanted(meant(name), wanted)]
    claims = claim(case, wanted, missing, extra) if missing or extra else ({}, {})
    return Inventory("base" if case.base else "config", wanted, *claims)


def _is_stored(name: str, named: Container[str], modules: Mapping[str, Module]) -> bool:
    """Is the tensor there, or its packed form?"""
    if name in named:
        return True
    owner, suffix = split_name(name)
    return suffix == "weight" and owner in modules and modules[owner].packed


def _is_wanted(name: str, wanted: Container[str]) -> bool:
    if name in wanted:
        return True
    owner, suffix = split_name(name)
    # A g_idx serves no current engine (compressed-tensors >= 0.19), so it counts as left over.
    return suffix in PACKED_SUFFIXES and suffix != "weight_g_idx" and f"{owner}.weight" in wanted
