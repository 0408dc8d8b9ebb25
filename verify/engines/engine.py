"""An engine as a value: how it names, fuses and matches modules, read from one JSON file and limited to one version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from checkpoint import CkptError, Problem

FOLDER = Path(__file__).parent
ANY_FAMILY = "*"

Scope = Literal["main", "draft"]
Version = tuple[int, ...]


class UnknownEngine(CkptError):
    """An engine that no file describes, or a version that is no version."""

    headline = "no such engine"


@dataclass(frozen=True)
class View:
    """How an engine sees the modules of one scope: the main model, or the draft model that speculates for it.

    Prefixes are those of checkpoint names with a final dot. `fused` says of which shards a fused layer is built,
    `matching` by which shards the engine looks it up in the config (`packed_modules_mapping`), usually the same.
    `unquantized` are regexes for whole checkpoint names that the engine builds dense whatever the config says.
    """

    scope: Scope
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    rename_entries: bool = False
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    matching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unquantized: tuple[str, ...] = ()

    def loads(self, module: str) -> bool:
        """Whether the engine reads `module` at all in this scope."""
        dotted = f"{module}."
        return not dotted.startswith(self.skip) and (not self.only or dotted.startswith(self.only))

    def engine_name(self, module: str) -> str:
        """What the engine calls the checkpoint's `module`."""
        return self._renamed(f"{module}.").removesuffix(".")

    def engine_entry(self, entry: str) -> str:
        """What a config entry reads like to the engine: only exact names with a dot are translated."""
        literal = self.rename_entries and "." in entry and not entry.startswith("re:")
        return self._renamed(entry) if literal else entry

    def is_unquantized(self, module: str) -> bool:
        return self._dense is not None and self._dense.fullmatch(module) is not None

    @cached_property
    def layer_of(self) -> dict[str, str]:
        """Shard -> the fused layer that it becomes part of."""
        return {shard: layer for layer, shards in self.fused.items() for shard in shards}

    @cached_property
    def _dense(self) -> re.Pattern[str] | None:
        return re.compile("|".join(f"(?:{one})" for one in self.unquantized)) if self.unquantized else None

    def _renamed(self, name: str) -> str:
        for prefix, replacement in self.rename.items():
            if name.startswith(prefix):
                name = replacement + name[len(prefix) :]
        return name


@dataclass(frozen=True)
class Outcome:
    """What the engine does with a module that is stored otherwise than built."""

    stored: str
    text: str
    kinds: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    before: Version | None = None


@dataclass(frozen=True)
class Engine:
    """An engine in one version. `label` is how the user asked for it: `vllm`, `vllm@0.24`."""

    name: str
    label: str
    title: str
    version: Version
    changes: Mapping[str, Version]
    classes: Mapping[str, str]
    class_otherwise: str
    views: Mapping[str, Mapping[Scope, View]]
    outcomes: tuple[Outcome, ...]

    def has(self, change: str) -> bool:
        """Whether this version is at or after the release that brought `change`. KeyError for an unknown change."""
        return self.version >= self.changes[change]

    def view(self, family: str | None, scope: Scope) -> View | None:
        """How the engine sees a family's modules; of a family without an entry, how it sees most."""
        views = self.views.get(family or ANY_FAMILY, self.views[ANY_FAMILY])
        return views.get(scope)

    def class_name(self, layer: str) -> str:
        """The class of the layer, by the last part of its name."""
        return self.classes.get(layer.rpartition(".")[2], self.class_otherwise)

    def outcome(self, stored: str, kind: str, scope: Scope) -> str:
        """What happens to a module of `kind` that is stored as `stored` and built as the opposite."""
        for one in self.outcomes:
            fits = one.stored == stored and (not one.kinds or kind in one.kinds)
            if fits and (not one.scopes or scope in one.scopes) and (one.before is None or self.version < one.before):
                return one.text
        return ""


@lru_cache(maxsize=64)
def load_engine(label: str) -> Engine:
    """The engine `NAME` or `NAME@VERSION`; without a version, the newest that its file knows. Raises UnknownEngine."""
    name, at, text = label.partition("@")
    if name not in engine_names():
        raise UnknownEngine(Problem("engine", f"{name!r} is none of {', '.join(engine_names())}"))
    data = _read(name)
    version = parse_version(text) if at else parse_version(data["current"])
    if version is None:
        raise UnknownEngine(Problem("engine", f"{text!r} is no version", expected=f"{name}@1.2.3"))
    return _parse(name, label, version, data)


@lru_cache(maxsize=1)
def engine_names() -> tuple[str, ...]:
    """The names of all known engines, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def parse_version(text: str) -> Version | None:
    """`0.24` and `0.24.0` are the same; None for anything that is not numbers and dots."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", text):
        return None
    numbers = [int(part) for part in text.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


@cache
def _read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def _parse(name: str, label: str, version: Version, data: Mapping[str, Any]) -> Engine:
    return Engine(
        name=name,
        label=label,
        title=data["title"],
        version=version,
        changes={change: _version(facts["since"]) for change, facts in data["changes"].items()},
        classes=data["classes"],
        class_otherwise=data["class_otherwise"],
        views={family: _parse_views(scopes) for family, scopes in data["families"].items()},
        outcomes=tuple(_parse_outcome(one) for one in data["outcomes"]),
    )


def _parse_views(scopes: Mapping[Scope, Any]) -> dict[Scope, View]:
    return {scope: _parse_view(scope, data) for scope, data in scopes.items()}


def _parse_view(scope: Scope, data: Mapping[str, Any]) -> View:
    fused = {layer: tuple(shards) for layer, shards in data.get("fused", {}).items()}
    matching = {layer: tuple(shards) for layer, shards in data["matching"].items()} if "matching" in data else fused
    return View(
        scope=scope,
        skip=tuple(data.get("skip", ())),
        only=tuple(data.get("only", ())),
        rename=data.get("rename", {}),
        rename_entries=data.get("rename_entries", False),
        fused=fused,
        matching=matching,
        unquantized=tuple(data.get("unquantized", ())),
    )


def _parse_outcome(data: Mapping[str, Any]) -> Outcome:
    before = _version(data["before"]) if "before" in data else None
    return Outcome(data["stored"], data["text"], tuple(data.get("kinds", ())), tuple(data.get("scopes", ())), before)


def _version(text: str) -> Version:
    version = parse_version(text)
    if version is None:
        raise ValueError(f"{text!r} is no version")
    return version
