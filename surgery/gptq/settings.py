"""The `gptq` section of a recipe as a value, and how llm-compressor spells what is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from surgery.recipe import packed_groups
from surgery.scheme import Group

Order = Literal["weight", "group", "none"]

ACTORDER: Mapping[Order, str | None] = {"weight": "static", "group": "dynamic", "none": None}
"""Our names, which are those of the GPTQ literature, and `ActivationOrdering` of compressed-tensors 0.19."""

MEMORY = 16 << 30


@dataclass(frozen=True)
class Settings:
    """How GPTQ is run. `sequential_targets` is None where they are chosen to fit `memory`, bytes of Hessians."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ()
    dampening: float = 0.01
    block_size: int = 128
    actorder: Order = "weight"
    sequential_targets: tuple[str, ...] | None = None
    targets_per_subgraph: int = 1
    memory: int = MEMORY
    calibrate_all_experts: bool = True
    allow_rtn_fallbacks: bool = False


def settings_of(section: Mapping[str, Any]) -> Settings:
    """The section, which its schema has accepted, with what it leaves out filled in."""
    named = section.get("sequential_targets", "auto")
    same = (
        "dampening",
        "block_size",
        "actorder",
        "targets_per_subgraph",
        "calibrate_all_experts",
        "allow_rtn_fallbacks",
    )
    return Settings(
        groups=packed_groups(section["groups"]),
        ignore=tuple(section.get("ignore", ())),
        sequential_targets=None if named == "auto" else tuple(named),
        memory=_bytes(section.get("memory", MEMORY)),
        **{key: section[key] for key in same if key in section},
    )


def _bytes(value: int | str) -> int:
    """Bytes, or binary multiples of them: 16G."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+)([KMGT]?)", value)
    if match is None:
        raise ValueError(f"{value!r} is no number of bytes")
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")
