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
- In a base, where there is one, they are twins, too: all of them are there, or none is.

What a rule does find in an excerpt is not told: all rules are run again, on the whole. Rules that count elements or
bytes, or look at the index or into tensors, are not for an excerpt at all: see `is_for_excerpts`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from operator import attrgetter, itemgetter

from checkpoint import Checkpoint, TensorRef
from checkpoint.families import ExpertBlock, Spec
from checkpoint.matching.digits import is_digit_blind
from checkpoint.modules import SUFFIXES
from checkpoint.patterns import PREFIX
from verify.case import Case, Notes
from verify.descent import Wanted
from verify.engines import ignore_entries, target_groups
from verify.registry import Rule

EXCERPTED = ("F15", "I", "T", "C", "M", "L", "O")
"""The rules that an excerpt is for: those on names, modules, the config's entries and the engines' reading of them."""

_EXPERT_ENTRY = re.compile(r"(.*\.)?experts\.\d+\.\w+|\d+\.\w+")
"""An expert's module, or the end of its name that SGLang takes for it."""

KEPT = frozenset({0, 1, 10, 100, 1_000, 10_000})
"""The experts that stay: the one that engines look at, and one for each number of digits."""

_DTYPE, _SHAPE = itemgetter(1), itemgetter(2)
_WANTED = attrgetter("shape", "dtypes", "optional")

_Parts = list[list[TensorRef]]
"""The tensors of all experts of an owner: a list for each of their parts, in the order of the experts' numbers."""


def is_for_excerpts(rule: Rule) -> bool:
    """If the rule finds nothing in an excerpt, is there nothing for it to find?"""
    return rule.id.startswith(EXCERPTED) and rule.cost != "content"


def excerpt(case: Case) -> Case | None:
    """`case` without the experts that have a twin in it; None where no expert can be spared."""
    checkpoint, spec = case.checkpoint, case.spec
    if spec is None or checkpoint.problems or checkpoint.strays or _tells_experts(case):
        return None
    twins = _twins(checkpoint, spec)
    if case.base is not None:
        twins = _twins_in_base(twins, case.wanted or {})
    omitted = {owner: frozenset(range(len(parts[0]))) - KEPT for owner, parts in twins.items()}
    experts = [part for parts in twins.values() for part in parts]
    kept = {id(part[number]) for part in experts for number in KEPT if number < len(part)}
    spared = set(map(id, chain.from_iterable(experts))) - kept
    tensors = {name: ref for name, ref in checkpoint.tensors.items() if id(ref) not in spared}
    if not spared or len(kept) != sum(_is_numbered(name, twins) for name in tensors):
        return None
    rest = replace(checkpoint, tensors=tensors, index=None)
    expected = None if case.base is None else _expected(case.wanted or {}, omitted)
    return replace(case, checkpoint=rest, described=spec.without(omitted), expected=expected, notes=Notes())


def _twins_in_base(twins: dict[str, _Parts], wanted: Mapping[str, Wanted]) -> dict[str, _Parts]:
    """Those of the owners whose experts are as many in the base, all alike, or not there at all."""
    counts: Counter[str] = Counter()
    firsts: dict[str, list[str]] = defaultdict(list)
    for name in wanted:
        owner, _, member = name.partition(".experts.")
        counts[f"{owner}.experts"] += 1
        if member.startswith("0."):
            firsts[f"{owner}.experts"].append(f"{owner}.experts.{{expert}}{member[1:]}")
    return {
        owner: parts
        for owner, parts in twins.items()
        if counts[owner] == len(firsts[owner]) * len(parts[0])
        and all(_are_wanted_alike(name, len(parts[0]), wanted) for name in firsts[owner])
    }


def _are_wanted_alike(name: str, count: int, wanted: Mapping[str, Wanted]) -> bool:
    """Does the base have the tensor of as many experts, in one dtype and shape?"""
    found = [wanted.get(one) for one in _numbered(name, map(str, range(count)))]
    return None not in found and len(set(map(_WANTED, found))) == 1


def _expected(wanted: Mapping[str, Wanted], omitted: Mapping[str, frozenset[int]]) -> dict[str, Wanted]:
    """What is wanted, without the experts omitted."""

    def is_omitted(name: str) -> bool:
        owner, _, member = name.partition(".experts.")
        number = member.partition(".")[0]
        return number.isdecimal() and int(number) in omitted.get(f"{owner}.experts", ())

    return {name: one for name, one in wanted.items() if not is_omitted(name)}


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
