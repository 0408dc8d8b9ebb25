"""A case without the experts that are like others of their layer: what holds of the rest holds of the whole.

A layer's 256 experts differ in nothing but their number. What a rule finds in one of them it finds in its twin, so
rules that find nothing in an excerpt of a few experts would find nothing in all of them. This rests on the following,
each of it proven here or else there is no excerpt:

- Experts of one owner are twins: they have the same projections with the same parts, dtypes and shapes, are numbered
  from 0 without a gap, and are as many as the config says; there is nothing else among them.
- Nothing names an expert: no exact entry of the config does, and no regex tells a digit from another. Such a regex
  can still tell numbers of one digit from those of two, so one expert of each length stays, and expert 0, by which
  engines judge all.
- Expert 0 comes first of its twins, so what a rule says of "the first" module is the same.

What a rule does find in an excerpt is not told: all rules are run again, on the whole. Rules that count elements or
bytes, or look at the index, are not for an excerpt at all: see `EXCERPTED`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from checkpoint import Checkpoint, TensorRef
from checkpoint.families import ExpertBlock, Spec
from checkpoint.modules import SUFFIXES
from checkpoint.patterns import PREFIX, is_digit_blind
from verify.case import Case, Notes
from verify.engines import ignore_entries, target_groups

EXCERPTED = ("F15", "I", "T", "C", "M", "L", "O")
"""The rules that an excerpt is for: those on names, modules, the config's entries and the engines' reading of them."""

_EXPERT_ENTRY = re.compile(r"(.*\.)?experts\.\d+\.\w+|\d+\.\w+")
"""An expert's module, or the end of its name that SGLang takes for it."""

KEPT = frozenset({0, 1, 10, 100, 1_000, 10_000})
"""The experts that stay: the one that engines look at, and one for each number of digits."""

_DTYPE, _SHAPE = itemgetter(1), itemgetter(2)

_Parts = list[list[TensorRef]]
"""The tensors of all experts of an owner: a list for each of their parts, in the order of the experts' numbers."""


def excerpt(case: Case) -> Case | None:
    """`case` without the experts that have a twin in it; None where no expert can be spared."""
    checkpoint, spec = case.checkpoint, case.spec
    if case.level != "headers" or case.base is not None or spec is None or _tells_experts(case):
        return None
    twins = {} if checkpoint.problems or checkpoint.strays else _twins(checkpoint, spec)
    omitted = {owner: frozenset(range(len(parts[0]))) - KEPT for owner, parts in twins.items()}
    experts = [part for parts in twins.values() for part in parts]
    kept = {id(part[number]) for part in experts for number in KEPT if number < len(part)}
    spared = set(map(id, chain.from_iterable(experts))) - kept
    tensors = {name: ref for name, ref in checkpoint.tensors.items() if id(ref) not in spared}
    if not spared or len(kept) != sum(_is_numbered(name, twins) for name in tensors):
        return None
    rest = replace(checkpoint, tensors=tensors, index=None)
    return replace(case, checkpoint=rest, described=spec.without(omitted), notes=Notes())


def _twins(checkpoint: Checkpoint, spec: Spec) -> dict[str, _Parts]:
    """The tensors of all experts by owner, without the owners whose experts are not alike, one by one and in order."""
    tensors = checkpoint.tensors
    places = _places(tensors)
    blocks = [block for block in spec.experts if block.owner.endswith(".experts")]
    found = {block.owner: _parts(block, tensors) for block in blocks}
    return {owner: parts for owner, parts in found.items() if parts and all(_are_alike(p, places) for p in parts)}


def _parts(block: ExpertBlock, tensors: Mapping[str, TensorRef]) -> _Parts | None:
    """The tensors of a block's experts; None where one lacks what the first one has."""
    members = {member for members in block.members.values() for member in members if "{expert}" in member}
    names = (f"{member}.{suffix}" for member in members for suffix in SUFFIXES)
    numbers = list(map(str, range(block.count)))
    try:
        return [
            list(map(tensors.__getitem__, _numbered(name, numbers)))
            for name in names
            if name.replace("{expert}", "0") in tensors
        ]
    except KeyError:
        return None


def _numbered(name: str, numbers: Iterable[str]) -> list[str]:
    """The name with each number in turn: in one piece and cut up again, which is faster; no name holds a slash."""
    head, tail = name.split("{expert}")
    return f"{head}{f'{tail}/{head}'.join(numbers)}{tail}".split("/")


def _places(tensors: Mapping[str, TensorRef]) -> Mapping[int, int] | None:
    """The place of each tensor in the order of all, by identity; None for alphabetical order, where 0 is first."""
    names = list(tensors)
    return None if names == sorted(names) else {id(ref): place for place, ref in enumerate(tensors.values())}


def _are_alike(part: list[TensorRef], places: Mapping[int, int] | None) -> bool:
    """Are the tensors of one dtype and shape, and is the first one stored first?"""
    dtypes, shapes = list(map(_DTYPE, part)), list(map(_SHAPE, part))
    if not dtypes.count(dtypes[0]) == shapes.count(shapes[0]) == len(part):
        return False
    return places is None or places[id(part[0])] == min(places[id(ref)] for ref in part)


def _is_numbered(name: str, owners: Container[str]) -> bool:
    """Is it, or does it look like, the tensor of a single expert of one of `owners`?"""
    owner, _, expert = name.partition(".experts.")
    return expert[:1].isdigit() and f"{owner}.experts" in owners


def _tells_experts(case: Case) -> bool:
    """Could the config treat an expert otherwise than another whose number is as long?"""
    quantization = case.quantization or {}
    for entry in (*ignore_entries(quantization), *target_groups(quantization)):
        pattern = entry.removeprefix(PREFIX)
        if not is_digit_blind(pattern) if entry.startswith(PREFIX) else _EXPERT_ENTRY.fullmatch(entry):
            return True
    return False
