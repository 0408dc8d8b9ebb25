"""A build as a file: what is packed and how, what becomes of the head, and the profile that the result must satisfy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from checkpoint import Address, Place, Problem, UnreadableCheckpoint
from checkpoint.draft import Draft
from checkpoint.errors import bounded
from checkpoint.places import SCHEME
from checkpoint.wholefile import read_whole
from surgery.int8_head import int8_head
from surgery.quantize import quantize
from surgery.scheme import Group, Maths, Scheme

MAX_RECIPE = 1024 * 1024
"""Bytes; a recipe is a page."""


@dataclass(frozen=True)
class Packing:
    """The `quantize` section: round-to-nearest of what `groups` target and `ignore` does not cover."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ()
    maths: Maths = "fp32"


@dataclass(frozen=True)
class Head:
    """The `int8_head` section."""

    scheme: Scheme
    maths: Maths = "fp32"


@dataclass(frozen=True)
class Recipe:
    """One build. It has either `quantize`, or `gptq` and `calibration`, which are what their schemas describe.

    `folder` is where paths in it start; `document` is all of it, as it was written.
    """

    name: str
    title: str
    folder: Path
    base: Place | None
    profile: str | None
    quantize: Packing | None
    gptq: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    head: Head | None
    document: Mapping[str, Any]

    @property
    def record(self) -> dict[str, Any]:
        """The recipe for a manifest: its name and what it says, files in it by their last component."""
        return {"name": self.name, "says": _placeless(dict(self.document))}


def recipe_names() -> tuple[str, ...]:
    """The recipes that come with the package."""
    recipes = (path.name for path in files("recipes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in recipes if name.endswith(".yaml")))


def load_recipe(recipe: str | Path) -> Recipe:
    """Read a recipe: one of `recipe_names()`, or a file. Raises UnreadableCheckpoint with all that is wrong with it."""
    known = str(recipe) in recipe_names()
    path = Path(str(files("recipes") / f"{recipe}.yaml")) if known else Path(recipe)
    try:
        text = read_whole(path, MAX_RECIPE).decode()
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror or str(error) if isinstance(error, OSError) else "is not UTF-8"
        expected = f"a recipe file, or one of {', '.join(recipe_names())}"
        raise UnreadableCheckpoint(Problem("recipe-unreadable", found, str(path), expected=expected)) from error
    return _recipe(_document(text, str(path)), path)


def build(draft: Draft, recipe: Recipe) -> Draft:
    """What a data-free `recipe` makes of `draft`, its base. Raises ValueError for a recipe that needs calibration."""
    if recipe.quantize is None:
        raise ValueError(f"{recipe.name} needs calibration")
    packing, head = recipe.quantize, recipe.head
    draft = quantize(draft, packing.groups, ignore=packing.ignore, maths=packing.maths)
    return int8_head(draft, scheme=head.scheme, maths=head.maths) if head and not draft.problems else draft


def packed_groups(entries: list[dict[str, Any]]) -> tuple[Group, ...]:
    """The groups of a section that its schema has accepted."""
    return tuple(
        Group(tuple(entry["targets"]), Scheme(entry["bits"], _size(entry["group_size"]), entry.get("symmetric", True)))
        for entry in entries
    )


def _document(text: str, file: str) -> dict[str, Any]:
    from checkpoint.plain_yaml import NotPlain, parse
    from schemas import validate

    try:
        document = parse(text)
    except NotPlain as error:
        raise UnreadableCheckpoint(Problem("recipe-invalid", str(error), file)) from error
    if not isinstance(document, dict):
        raise UnreadableCheckpoint(Problem("recipe-invalid", "is not a map of fields", file))
    faults = validate(document, "recipe")
    if faults:
        raise UnreadableCheckpoint(
            bounded(Problem("recipe-invalid", fault.message, file, fault.path or None) for fault in faults)
        )
    return document


def _recipe(document: dict[str, Any], path: Path) -> Recipe:
    packing, head = document.get("quantize"), document.get("int8_head")
    return Recipe(
        name=path.stem,
        title=document["title"],
        folder=path.parent,
        base=_base(document["base"], path.parent) if "base" in document else None,
        profile=document.get("profile"),
        quantize=packing
        and Packing(packed_groups(packing["groups"]), tuple(packing.get("ignore", ())), packing.get("maths", "fp32")),
        gptq=document.get("gptq"),
        calibration=document.get("calibration"),
        head=None if head is None else Head(Scheme(8, _size(head.get("group_size", 128))), head.get("maths", "fp32")),
        document=document,
    )


def _base(text: str, folder: Path) -> Place:
    """An address on the Hub, or a folder, from the recipe's own on. Raises UnreadableCheckpoint."""
    return Address.parse(text) if text.startswith(SCHEME) else folder / text


def _placeless(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _placeless(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_placeless(one) for one in value]
    if key in ("base", "file") and isinstance(value, str) and not value.startswith(SCHEME):
        return PurePath(value).name
    return value


def _size(value: int | str) -> int | None:
    return None if value == "channel" else int(value)
