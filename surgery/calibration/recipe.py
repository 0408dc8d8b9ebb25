"""What a recipe asks of the calibration data, checked as a whole before any text is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeGuard

from checkpoint import Problem, Refused
from checkpoint.wholefile import read_whole
from surgery.recipe import MAX_RECIPE, recipe_names

SECTION = "calibration"
FORMS = (".jsonl", ".txt")
NUMBERS = ("sequences", "min_tokens", "max_tokens", "seed", "held_back")
WORDS = ("when_short", "date", "template")
DAY = re.compile(r"\d{4}-\d\d-\d\d")

System = Literal["keep", "drop"]
WhenShort = Literal["refuse", "fill"]


@dataclass(frozen=True)
class SourceSpec:
    """One file of text. `name` is the path as the recipe writes it; shares are to one another as they are."""

    name: str
    path: Path
    share: float
    system: System = "keep"


@dataclass(frozen=True)
class Calibration:
    """A recipe's calibration section. `written` is the section itself, `recipe` the name of its file."""

    recipe: str
    written: Mapping[str, Any]
    sequences: int
    min_tokens: int
    sources: tuple[SourceSpec, ...]
    max_tokens: int | None = None
    seed: int = 0
    held_back: int = 0
    when_short: WhenShort = "refuse"
    date: str | None = None
    template: Mapping[str, Any] | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares as parts of 1."""
        total = math.fsum(source.share for source in self.sources)
        return tuple(source.share / total for source in self.sources)


def recipe_path(recipe: str) -> Path:
    """The file of a recipe that comes with the package, or `recipe` as a path."""
    return Path(str(files("recipes") / f"{recipe}.yaml")) if recipe in recipe_names() else Path(recipe)


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's fields, whatever its other sections are. Refuses a file that cannot be read or is no plain YAML."""
    from checkpoint.plain_yaml import NotPlain, parse

    try:
        document = parse(read_whole(path, MAX_RECIPE).decode())
    except OSError as error:
        raise Refused(Problem("recipe-unreadable", error.strerror or str(error), str(path))) from error
    except (NotPlain, UnicodeDecodeError) as error:
        raise Refused(Problem("recipe-invalid", str(error), str(path))) from error
    if not isinstance(document, dict):
        found = f"holds {type(document).__name__}, no map of fields"
        raise Refused(Problem("recipe-invalid", found, str(path), expected=f"a section `{SECTION}:`"))
    return document


def calibration_of(section: Any, recipe: Path) -> Calibration:
    """The section as a value; source paths are taken from the folder of `recipe`.

    Refuses what the schema `calibration` or a look at the sources' names forbids, all of it at once.
    """
    from schemas import validate

    problems = [
        Problem("recipe-invalid", fault.message, str(recipe), _place(fault.path))
        for fault in validate(section, SECTION)
    ]
    problems += _beyond_the_schema(section, recipe)
    if problems:
        raise Refused(problems)
    sources = tuple(
        SourceSpec(_name(source), _path(source, recipe), float(source["share"]), source.get("system", "keep"))
        for source in section["sources"]
    )
    # JSON Schema takes 384.0 for a whole number
    numbers: dict[str, Any] = {key: int(section[key]) for key in NUMBERS if section.get(key) is not None}
    words: dict[str, Any] = {key: section[key] for key in WORDS if key in section}
    return Calibration(recipe=recipe.name, written=section, sources=sources, **numbers, **words)


def shipped(name: str) -> Path:
    """Where the texts called `name` lie that come with the package."""
    return Path(str(files("recipes") / "calibration" / f"{name}.jsonl"))


def _beyond_the_schema(section: Any, recipe: Path) -> Iterator[Problem]:
    """Faults that no schema can tell; what has another type than it should is left to the schema."""
    if not isinstance(section, dict):
        return
    least, most, day = (section.get(key) for key in ("min_tokens", "max_tokens", "date"))
    if _is_number(least) and _is_number(most) and most < least:
        expected, remedy = f"at least min_tokens, {least:,}", "Raise max_tokens, or leave it out"
        yield Problem("recipe-invalid", f"{most:,}", str(recipe), _place("max_tokens"), expected, remedy)
    if isinstance(day, str) and DAY.fullmatch(day) and not _is_day(day):
        yield Problem("recipe-invalid", f"{day!r}", str(recipe), _place("date"), "a day as YYYY-MM-DD")
    sources = section.get("sources")
    for index, source in enumerate(sources if isinstance(sources, list) else ()):
        if isinstance(source, dict):
            yield from _source_problems(source, _place(f"sources[{index}]"), recipe)


def _source_problems(source: dict[str, Any], place: str, recipe: Path) -> Iterator[Problem]:
    share, name = source.get("share"), source.get("file")
    if _is_number(share) and not math.isfinite(share):
        yield Problem("recipe-invalid", f"a share of {share}", str(recipe), place, "a positive number")
    if not isinstance(name, str) or not name:
        return
    if Path(name).suffix.lower() not in FORMS:
        yield Problem(
            "source-form", f"the file {name!r}", str(recipe), place, f"a name that ends in {' or '.join(FORMS)}"
        )
    elif not _is_file(recipe.parent / name):
        remedy = "Paths are taken from the folder of the recipe"
        yield Problem("source-absent", f"{name} is not a file", str(recipe), place, remedy=remedy)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long is an error, not the name of no file
        return False


def _name(source: Mapping[str, Any]) -> str:
    return str(source.get("file") or f"shipped: {source['shipped']}")


def _path(source: Mapping[str, Any], recipe: Path) -> Path:
    return recipe.parent / source["file"] if "file" in source else shipped(source["shipped"])


def _place(path: str) -> str:
    return f"{SECTION}.{path}" if path else SECTION


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
