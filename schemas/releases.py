"""Spellings of quantization_config that some releases of compressed-tensors read and others refuse.

The list is data, `compressed_tensors_releases.json`, and every line of it was measured by running the releases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from schemas.validation import readable_path, validate

FILE = Path(__file__).with_name("compressed_tensors_releases.json")
ARGS = ("weights", "input_activations", "output_activations")

Place = Literal["config", "group", "args", "preset"]


@dataclass(frozen=True)
class Spelling:
    """One way to write something. Releases from `since` on and before `before` refuse it; None sets no limit."""

    place: Place
    key: str | None
    matches: Mapping[str, Any]
    what: str
    remedy: str
    evidence: str
    since: str | None
    before: str | None

    def refused_by(self, release: str) -> bool:
        """Whether the release `release` of compressed-tensors (`0.14.0.1`) refuses a config so spelled."""
        late = self.since is None or version(self.since) <= version(release)
        return late and (self.before is None or version(release) < version(self.before))


@dataclass(frozen=True)
class Spelled:
    """A spelling that a config uses, and where: `config_groups.group_0.weights.scale_dtype`."""

    path: str
    spelling: Spelling


def spelled(quantization: Mapping[str, Any]) -> list[Spelled]:
    """Every use in a quantization_config of a spelling that some releases refuse and others read.

    Empty where all agree: what every release refuses is for the schema to say.
    """
    return [
        Spelled(readable_path((*path, spelling.key) if spelling.key else path), spelling)
        for place, path, found in _places(quantization)
        for spelling in spellings()
        if spelling.place == place and not validate(found, spelling.matches)
    ]


@lru_cache(maxsize=1)
def spellings() -> tuple[Spelling, ...]:
    """All spellings that the data file lists, in its order."""
    return tuple(
        Spelling(
            place=entry["place"],
            key=entry.get("key"),
            matches=entry["matches"],
            what=entry["what"],
            remedy=entry.get("remedy", ""),
            evidence=entry.get("evidence", ""),
            since=entry["refused"].get("since"),
            before=entry["refused"].get("before"),
        )
        for entry in _file()["spellings"]
    )


def releases() -> tuple[str, ...]:
    """The releases that were run, the oldest first."""
    return tuple(_file()["releases"])


def version(release: str) -> tuple[int, ...]:
    """A release as numbers that compare: `0.13` is `0.13.0`, and earlier than `0.13.0.1`. ValueError for other text."""
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def _places(quantization: Mapping[str, Any]) -> Iterator[tuple[Place, tuple[str, ...], Any]]:
    """Everything that a spelling can match: what kind of object it is, its path, itself."""
    yield "config", (), quantization
    if isinstance(cache := quantization.get("kv_cache_scheme"), dict):
        yield "args", ("kv_cache_scheme",), cache
    groups = quantization.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        path = ("config_groups", name)
        if isinstance(group, list):
            yield "preset", path, name.upper()  # as preset_name_to_scheme looks it up
        elif isinstance(group, dict):
            yield "group", path, group
            yield from (("args", (*path, key), group[key]) for key in ARGS if isinstance(group.get(key), dict))
