"""What a decoded token reads, keeps and writes: a family's own statement, and its values for one config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from checkpoint.families.expression import Expression, parse
from checkpoint.families.spec import build_spec, holds
from checkpoint.families.values import Values

if TYPE_CHECKING:
    from checkpoint.families.family import Family

Conditions = tuple[str, ...]
StateDtype = Literal["model", "state"]
Drafted = Literal["widens", "copies"]


@dataclass(frozen=True)
class KvTemplate:
    """The KV cache of the layers of which `when` holds: `heads` of `width` values, the key's and the value's."""

    heads: Expression
    width: Expression
    when: Conditions = ()


@dataclass(frozen=True)
class StateTemplate:
    """What a layer keeps of all the past of a stream, in a fixed size.

    A token that is drafted `widens` it by one column, or costs one further of its `copies`.
    """

    name: str
    shape: tuple[Expression, ...]
    dtype: StateDtype
    drafted: Drafted
    when: Conditions = ()


@dataclass(frozen=True)
class RotaryTemplate:
    """The config key with the number of positions, the width of a head, and the share of it that is rotated."""

    positions: str
    width: Expression
    share: float


@dataclass(frozen=True)
class Parallel:
    """Modules whose rows or columns tensor-parallel ranks divide; what neither covers, every rank has whole.

    Modules that `heads` covers divide into no more parts than `head_count`.
    """

    rows: re.Pattern[str]
    columns: re.Pattern[str]
    heads: re.Pattern[str] | None
    head_count: Expression | None


@dataclass(frozen=True)
class Decoding:
    """What a family file says of decoding. `state_dtype` is the config key with the dtype of states, if any."""

    active_experts: Expression | None
    kv: KvTemplate
    states: tuple[StateTemplate, ...]
    state_dtype: str | None
    rotary: RotaryTemplate
    parallel: Parallel


@dataclass(frozen=True)
class State:
    """A state of one stream in `layers` layers, each of `shape`, the first side of which ranks divide."""

    name: str
    shape: tuple[int, ...]
    layers: int
    dtype: StateDtype
    drafted: Drafted

    @property
    def values(self) -> int:
        """How many values all layers keep of it."""
        return self.layers * prod(self.shape)


@dataclass(frozen=True)
class Decoder:
    """What a model of one config does for a token. `kv_layers` are those of the body, `draft_kv_layers` the MTP head's.

    `experts` and `active` are 0 where no layer has routed experts.
    """

    experts: int
    active: int
    kv_layers: int
    draft_kv_layers: int
    kv_heads: int
    kv_width: int
    states: tuple[State, ...]
    draft_layers: int
    head_parts: int


def parse_decoding(data: Mapping[str, Any]) -> Decoding:
    """The `decoding` of a family file."""
    active, kv, rotary = data.get("active_experts"), data["kv"], data["rotary"]
    return Decoding(
        active_experts=parse(active) if active else None,
        kv=KvTemplate(parse(kv["heads"]), parse(kv["width"]), tuple(kv.get("when", ()))),
        states=tuple(_parse_state(state) for state in data.get("states", ())),
        state_dtype=data.get("state_dtype"),
        rotary=RotaryTemplate(rotary["positions"], parse(rotary["width"]), rotary["share"]),
        parallel=_parse_parallel(data["parallel"]),
    )


def _parse_state(data: Mapping[str, Any]) -> StateTemplate:
    shape = tuple(parse(side) for side in data["shape"])
    return StateTemplate(data["name"], shape, data["dtype"], data["drafted"], tuple(data.get("when", ())))


def _parse_parallel(data: Mapping[str, Any]) -> Parallel:
    heads = data.get("heads", {})
    return Parallel(
        re.compile(data["rows"]),
        re.compile(data["columns"]),
        re.compile(heads["pattern"]) if heads else None,
        parse(heads["count"]) if heads else None,
    )


def build_decoder(family: Family, decoding: Decoding, values: Values) -> Decoder:
    """`decoding` for the config behind `values`; what is missing there is noted in `values.faults`."""
    spec = build_spec(family, values)
    body, draft = [layer.facts for layer in spec.layers], list(_draft_layers(family, values))
    routed = bool(spec.experts) and decoding.active_experts is not None
    return Decoder(
        experts=spec.experts[0].count if routed else 0,
        active=values.evaluate(decoding.active_experts) if routed and decoding.active_experts else 0,
        kv_layers=_count(decoding.kv.when, body, values),
        draft_kv_layers=_count(decoding.kv.when, draft, values),
        kv_heads=values.evaluate(decoding.kv.heads),
        kv_width=values.evaluate(decoding.kv.width),
        states=tuple(_state(state, body, values) for state in decoding.states),
        draft_layers=len(draft),
        head_parts=values.evaluate(decoding.parallel.head_count) if decoding.parallel.head_count else 0,
    )


def _state(template: StateTemplate, layers: list[Conditions], values: Values) -> State:
    shape = tuple(values.evaluate(side) for side in template.shape)
    return State(template.name, shape, _count(template.when, layers, values), template.dtype, template.drafted)


def _count(when: Conditions, layers: list[Conditions], values: Values) -> int:
    return sum(holds(when, facts, values) for facts in layers)


def _draft_layers(family: Family, values: Values) -> Iterator[Conditions]:
    """The facts of every layer of the MTP head."""
    for section in family.sections:
        if section.scope == "mtp" and section.repeat is not None and holds(section.when, (), values):
            yield from [section.assume or ()] * values.count(section.repeat.count)
