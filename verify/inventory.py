"""What should be stored against what is: the names missing and the names besides, each left to one rule."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
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


def wanted_tensors(case: Case) -> dict[str, Wanted] | None:
    """What should be stored by the base, else by the family's spec; None where there is neither."""
    if case.base is not None:
        return wanted_from_base(case.base, case.family, _as_meant(case)[1])
    return None if case.spec is None else wanted_from_spec(case.spec, _as_meant(case)[1])


def weights(wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """Of what is wanted, the weights and bare parameters, by module."""
    owners = ((split_name(name), one) for name, one in wanted.items())
    return {owner: one for (owner, suffix), one in owners if suffix in ("weight", "")}


def _as_meant(case: Case) -> tuple[Mapping[str, object], Mapping[str, Module]]:
    """The names and modules that the folder knows of, without nesting."""
    if not any(map(nesting, case.named)):
        return case.named, case.named_modules
    named = dict.fromkeys(map(meant, case.named))
    return named, group_modules(named)


def take_inventory(case: Case) -> Inventory | None:
    """The inventory against the base, else against the family's spec; None where there is neither."""
    wanted = case.wanted
    if wanted is None:
        return None
    named, modules = _as_meant(case)
    stored = case.checkpoint.tensors
    missing = [name for name, one in wanted.items() if not one.optional and not _is_stored(name, named, modules)]
    read = stored if named is case.named else map(meant, stored)
    extra = [name for name, one in zip(stored, read, strict=True) if not _is_wanted(one, wanted)]
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
