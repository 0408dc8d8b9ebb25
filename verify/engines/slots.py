"""The modules that an engine might build quantized: what each is, and which experts belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from checkpoint import Checkpoint, Module
from checkpoint.families import Family

if TYPE_CHECKING:
    from verify.case import Case

QUANTIZABLE = frozenset({"linear", "expert", "router", "head", "embedding"})
EXPERT = re.compile(r"(?P<owner>.+\.experts)\.(?:\d+\.)?\w+")
HEAD = "lm_head"
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})


class Slot(NamedTuple):
    """A module of the checkpoint. `owner` is the module that holds all experts, for an expert or fused experts."""

    name: str
    kind: str
    owner: str | None
    packed: bool


def slots(case: Case) -> tuple[Slot, ...]:
    """Every module that some engine builds as a linear layer, as experts or as an embedding.

    All are stored, except that a head tied to the embedding has no tensor: transformers builds it as a Linear all the
    same, packs it where a target covers it, and then finds no weight to tie (seen with 5.17: AttributeError).
    """
    return (*_slots(case), *_tied_head(case))


def _tied_head(case: Case) -> Iterator[Slot]:
    tied = case.spec.tied if case.spec else case.config.get("tie_word_embeddings") is True
    if tied and HEAD not in case.modules:
        yield Slot(HEAD, "head", None, packed=False)


def _slots(case: Case) -> Iterator[Slot]:
    for name, module in case.modules.items():
        kind = kind_of(module, case.family, case.checkpoint)
        if kind is not None:
            owner = EXPERT.fullmatch(name) if kind == "expert" else None
            yield Slot(name, kind, owner["owner"] if owner else None, is_packed(module))


def is_packed(module: Module) -> bool:
    """Is the weight stored packed? What is dense with leftovers beside it is not."""
    return module.packed and "weight" not in module.tensors


def kind_of(module: Module, family: Family | None, checkpoint: Checkpoint) -> str | None:
    """What the module is, None if it can never be quantized or the family has no such module."""
    if family is None:
        return _guess(module, checkpoint)
    kind = family.kind(module.name)
    if kind == "vision":
        return kind if family.is_linear(module.name) or module.packed else None
    return kind if kind in QUANTIZABLE else None


def _guess(module: Module, checkpoint: Checkpoint) -> str | None:
    """The kind of a module of no known family: two dimensions make a linear layer, names tell the rest."""
    bare = "" in module.tensors
    dimensions = 3 if bare else 2
    weight = module.tensors.get("" if bare else "weight")
    if not module.packed and (weight is None or len(checkpoint.tensors[weight].shape) != dimensions):
        return None
    leaf = module.name.rpartition(".")[2]
    if EXPERT.fullmatch(module.name):
        return "expert"
    if bare:
        return None
    if leaf in ROUTERS:
        return "router"
    if leaf == "lm_head":
        return "head"
    return "embedding" if "embed" in leaf else "linear"
