"""The published builds by name: `recipes/NAME.yaml`, what they target and how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from surgery.scheme import Group, Maths, Scheme


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
    """Names that `--preset` takes."""
    recipes = (path.name for path in files("recipes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in recipes if name.endswith(".yaml")))


@lru_cache
def load_preset(name: str) -> Preset:
    """Read a preset. Raises KeyError for an unknown name."""
    import yaml

    if name not in preset_names():
        raise KeyError(name)
    data: dict[str, Any] = yaml.safe_load((files("recipes") / f"{name}.yaml").read_text(encoding="utf-8"))
    work = data["quantize"]
    groups = tuple(
        Group(tuple(g["targets"]), Scheme(g["bits"], g["group_size"], g["symmetric"])) for g in work["groups"]
    )
    return Preset(name, data["title"], groups, tuple(work["ignore"]), work["maths"], data.get("profile"))
