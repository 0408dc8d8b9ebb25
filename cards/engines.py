"""What a checkpoint asks of each engine, and the commands that serve it: `engines.json` read against its facts.

The data are described by `schemas/card_engines.schema.json`; releases that `verify/engines/` knows come from there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verify.engines import load_engine

DATA = Path(__file__).with_name("engines.json")


@dataclass(frozen=True)
class Need:
    """A release from which on something is read, and the public reports that say so."""

    since: str
    what: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """The command that fails where weights are missing, since when it does, and what it is for."""

    since: str
    what: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What an engine needs for a checkpoint and how it serves it; commands are lines.

    `needs` are those of the latest release needed. `withheld`: the engine drafts with an MTP head, but not with this.
    """

    name: str
    title: str
    current: str
    needs: tuple[Need, ...]
    advised: Need | None
    notes: tuple[str, ...]
    serve: tuple[str, ...]
    speculative: tuple[str, ...]
    withheld: bool
    acceptance: Acceptance | None


def advice(facts: Collection[str], model: str) -> tuple[Advice, ...]:
    """What each engine needs where `facts` hold; `model` is what its commands serve."""
    return tuple(_advice(name, one, frozenset(facts), model) for name, one in _data()["engines"].items())


def _advice(name: str, one: Mapping[str, Any], facts: frozenset[str], model: str) -> Advice:
    engine = load_engine(name)
    needs = [_need(name, need) for need in one["needs"] if _holds(need, facts)]
    least = max((need.since for need in needs), key=_numbers, default="0")
    advised, acceptance = one.get("advised"), one.get("acceptance")
    better = _need(name, advised) if advised and _holds(advised, facts) else None
    return Advice(
        name,
        engine.title,
        released(engine.version),
        tuple(need for need in needs if need.since == least),
        better if better and _numbers(better.since) > _numbers(least) else None,
        tuple(note["text"] for note in one["notes"] if _holds(note, facts)),
        tuple(_lines(one.get("serve", ()), model)),
        tuple(_speculative(one.get("speculative"), facts, model)),
        "draft" in facts and bool(facts & set(one.get("speculative", {}).get("unless", ()))),
        Acceptance(acceptance["since"], acceptance["what"], tuple(_lines(acceptance["lines"], model)))
        if acceptance and _holds(acceptance, facts)
        else None,
    )


def _speculative(one: Mapping[str, Any] | None, facts: frozenset[str], model: str) -> Iterator[str]:
    if one and "draft" in facts and not facts & set(one.get("unless", ())):
        yield from _lines(one["lines"], model)


def _holds(statement: Mapping[str, Any], facts: frozenset[str]) -> bool:
    return facts.issuperset(statement["when"])


def _need(engine: str, one: Mapping[str, Any]) -> Need:
    since = one.get("since") or released(load_engine(engine).changes[one["change"]])
    return Need(since, one["what"], tuple(one.get("evidence", ())))


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def released(version: tuple[int, ...]) -> str:
    """`0.33.0` of a version as the engines' files hold it."""
    return ".".join(str(number) for number in version[:3])


def _lines(lines: Any, model: str) -> Iterator[str]:
    return (line.format(model=model) for line in lines)


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data
