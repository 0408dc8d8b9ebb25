"""What differs between the engines behind the protocol: data, in engines.json beside this file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("engines.json")
OTHER = "other"


@dataclass(frozen=True)
class Engine:
    """How an engine is recognised, which members its requests may have, and what its metrics are called.

    `speculation`: counters `drafts`, `drafted`, `accepted`, `accepted_by_position`, or gauges `accepted_length`,
    `acceptance`. An empty mapping or None: the engine has no such thing.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    owned_by: str | None = None
    metrics_prefix: str | None = None
    version: str | None = None
    tokenize: str | None = None
    greedy: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: Mapping[str, Any] = field(default_factory=dict)
    ids: Mapping[str, Any] = field(default_factory=dict)
    running_count: Mapping[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def engines() -> Mapping[str, Engine]:
    """All engines by name; `other` is what a server is that none of them is recognised in."""
    table = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Engine(name, **(entry | {"sources": tuple(entry["sources"])})) for name, entry in table.items()}


def of_models(models: Iterable[Any]) -> Engine | None:
    """The engine by what it says of its models, None where that says nothing."""
    found = (entry.get("owned_by") for entry in models if isinstance(entry, Mapping))
    owners = {owner for owner in found if isinstance(owner, str)}
    known = (engine for engine in engines().values() if engine.owned_by and engine.owned_by in owners)
    return next(known, None)


def of_metrics(text: str | None) -> Engine:
    """The engine by the names of its metrics, `other` where there are none of any."""
    for engine in engines().values():
        if engine.metrics_prefix and text and f"\n{engine.metrics_prefix}" in f"\n{text}":
            return engine
    return engines()[OTHER]
