"""To which rule a missing or an unexpected tensor belongs.

A lost draft head, an absent layer and an absent expert all show as missing names; each is reported once, by the rule
that names its cause best. Names that the rules of the draft head report are claimed by `DRAFT` and by nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from checkpoint import split_name
from verify.descent import EXPERT, Wanted

if TYPE_CHECKING:
    from verify.case import Case

Claims = Mapping[str, tuple[str, ...]]

DRAFT = "M01"
LAYER = re.compile(r"(?P<prefix>.*?\b(?:layers|blocks|h)\.)(?P<number>\d+)\.(?P<component>\w+)")
VISION = re.compile(r"(model\.)?(visual|vision_tower|vision_model)\.")
NESTED = re.compile(r"\b(language_model|model)\.(?:model\.)?\1\.")
FUSED_PACKED = re.compile(
    r"(?P<owner>.+\.experts)\.(gate_up|gate|up|down)_proj[._](weight_)?(packed|scale|shape|zero_point)"
)
"""Packed experts under one 3-D name, which no engine knows."""


class Place(NamedTuple):
    """A component of a numbered layer: (`model.layers.`, 3, `self_attn`)."""

    prefix: str
    number: int
    component: str

    @property
    def layer(self) -> tuple[str, int]:
        return self.prefix, self.number


def nesting(name: str) -> re.Match[str] | None:
    """Where a prefix stands in the name twice, as in `model.language_model.language_model.layers`."""
    likely = name.count("language_model.") > 1 or "model.model." in name
    return NESTED.search(name) if likely else None


def meant(name: str) -> str:
    """The name without the repetition, by which F15 tells of it."""
    return NESTED.sub(r"\1.", name) if nesting(name) else name


def place_of(name: str) -> Place | None:
    match = LAYER.match(name)
    return Place(match["prefix"], int(match["number"]), match["component"]) if match else None


def is_draft(case: Case, name: str) -> bool:
    """Is the tensor of the draft head, as far as the family knows one?"""
    family = case.family
    return name.startswith(family.mtp.prefix if family and family.mtp else "mtp.")


def is_head(case: Case, name: str) -> bool:
    """Does the tensor belong to the output head?"""
    module = split_name(name)[0]
    return module == "lm_head" or (case.family is not None and case.family.kind(module) == "head")


def is_vision(case: Case, name: str) -> bool:
    """Is the tensor of the vision tower?"""
    kind = case.family.kind(split_name(name)[0]) if case.family else None
    return kind == "vision" or (kind is None and VISION.match(name) is not None)


class Scene:
    """What is wanted and what is stored, seen once in the terms that the claims need."""

    def __init__(self, case: Case, wanted: Mapping[str, Wanted], missing: Iterable[str], extra: Iterable[str]) -> None:
        self.case = case
        wanted_places, stored_places = _places(wanted), _places(case.named)
        self.wanted_layers = {place.layer for place in wanted_places}
        self.stored_layers = {place.layer for place in stored_places}
        self.prefixes = {place.prefix for place in wanted_places}
        self.absent = _places(missing) - stored_places
        self.foreign = _places(extra) - wanted_places
        self.retyped = {place.layer for place in self.absent} & {place.layer for place in self.foreign}
        self.draft_wanted = any(is_draft(case, name) for name in wanted)
        self.vision_wanted = any(is_vision(case, name) for name in wanted)
        self.vision_stored = any(is_vision(case, name) for name in case.named)
        self.experts_wanted = {match["owner"] for name in wanted if (match := EXPERT.match(name))}
        self.experts_stored = {match["owner"] for name in case.named if (match := EXPERT.match(name))}
        self.fused_packed = {match["owner"] for name in case.named if (match := FUSED_PACKED.fullmatch(name))}


def missing_rule(scene: Scene, name: str) -> str:
    """The rule that reports a tensor which should be stored and is not."""
    place, expert = place_of(name), EXPERT.match(name)
    owner = expert["owner"] if expert else name.rpartition(".")[0]
    if is_draft(scene.case, name):
        return DRAFT
    if is_head(scene.case, name):
        return "I10"
    if is_vision(scene.case, name) and not scene.vision_stored:
        return "I09"
    if owner in scene.fused_packed:
        return "I07"
    if place and (place.layer not in scene.stored_layers or (place in scene.absent and place.layer in scene.retyped)):
        return "I08"
    return "I04" if expert and owner in scene.experts_stored else "I01"


def extra_rule(scene: Scene, name: str) -> str:
    """The rule that reports a tensor which is stored and should not be."""
    place, expert = place_of(name), EXPERT.match(name)
    if FUSED_PACKED.fullmatch(name):
        return "I07"
    if is_draft(scene.case, name) and not scene.draft_wanted:
        return DRAFT
    if is_head(scene.case, name):
        return "I10"
    if is_vision(scene.case, name) and not scene.vision_wanted:
        return "I09"
    if name.rpartition(".")[0] in scene.experts_wanted and not expert:
        return "I05"
    if place and place.prefix in scene.prefixes and place.layer not in scene.wanted_layers:
        return "I08"
    if place and place in scene.foreign and place.layer in scene.retyped:
        return "I08"
    return "I04" if _is_expert(name) and expert and expert["owner"] in scene.experts_wanted else "I11"


def _is_expert(name: str) -> bool:
    """Is it a weight of a single expert, or a part of it packed? What calibration leaves beside one is not."""
    module, suffix = split_name(name)
    return suffix not in ("", "weight_g_idx") and EXPERT.fullmatch(module) is not None


def claim(case: Case, wanted: Mapping[str, Wanted], missing: list[str], extra: list[str]) -> tuple[Claims, Claims]:
    """The missing and the extra names by the rule that reports them."""
    scene = Scene(case, wanted, missing, extra)
    return _by_rule(scene, missing, missing_rule), _by_rule(scene, extra, extra_rule)


def _by_rule(scene: Scene, names: Iterable[str], rule_of: Callable[[Scene, str], str]) -> Claims:
    claims: dict[str, list[str]] = {}
    for name in names:
        claims.setdefault(rule_of(scene, name), []).append(name)
    return {rule: tuple(claimed) for rule, claimed in claims.items()}


def _places(names: Iterable[str]) -> set[Place]:
    return {place for name in names if (place := place_of(name))}
