"""The data-free builds by name: what `quantize --preset` takes of their recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from surgery.recipe import load_recipe, recipe_names
from surgery.scheme import Group, Maths


@dataclass(frozen=True)
class Preset:
    """A data-free build: `profile` is the schema that its layout satisfies, if there is one."""

    name: str
    title: str
    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    maths: Maths
    profile: str | None

    def regrouped(self, group_size: int | None) -> Preset:
        """The preset with another group size in all its groups; no profile describes that."""
        groups = tuple(replace(g, scheme=replace(g.scheme, group_size=group_size)) for g in self.groups)
        return replace(self, groups=groups, profile=None)


def preset_names() -> tuple[str, ...]:
    """Names that `--preset` takes: the data-free recipes."""
    return tuple(name for name in recipe_names() if load_recipe(name).quantize is not None)


@lru_cache
def load_preset(name: str) -> Preset:
    """Read a preset. Raises KeyError for an unknown name."""
    recipe = load_recipe(name) if name in recipe_names() else None
    if recipe is None or recipe.quantize is None:
        raise KeyError(name)
    packing = recipe.quantize
    return Preset(name, recipe.title, packing.groups, packing.ignore, packing.maths, recipe.profile)
