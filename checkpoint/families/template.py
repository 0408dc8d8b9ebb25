"""A family file as values: the tensors a model has, written once for all layers, experts and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from checkpoint.families.expression import Expression, parse

Scope = Literal["top", "body", "vision", "mtp"]
LINEAR_KINDS = frozenset({"linear", "expert", "router", "head"})


@dataclass(frozen=True)
class Repeat:
    """A placeholder (`layer`, `expert`, `block`) and how many values it takes, counted from 0."""

    variable: str
    count: Expression


@dataclass(frozen=True)
class TensorTemplate:
    """One line of a family file: a tensor name with placeholders, its shape and when it exists.

    `layout` names the experts' storage it belongs to, None if it is stored in every layout; `splits` names the
    projections stacked along dim 1 of a fused 3-D parameter; `held` is the dtype in which vLLM holds it, None for the
    config's.
    """

    name: str
    shape: tuple[Expression, ...]
    kind: str
    linear: bool
    when: tuple[str, ...] = ()
    optional_when: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    layout: str | None = None
    repeat: Repeat | None = None
    splits: tuple[str, ...] = ()
    held: str | None = None

    @cached_property
    def module(self) -> str:
        """The owner of the tensor: `q_proj` for `q_proj.weight`, the name itself for a bare parameter."""
        return self.name.removesuffix(".weight").removesuffix(".bias")

    @cached_property
    def owner(self) -> str:
        """For the tensor of an expert, the module that holds all experts: `mlp.experts`."""
        if self.splits:
            return self.name.rpartition(".")[0]
        return self.name.partition(".{")[0]


@dataclass(frozen=True)
class Section:
    """Tensors that share a prefix: the top level, one decoder layer, one vision block, the MTP head.

    `assume` states the facts of a layer that the config does not describe, as of an MTP layer.
    """

    scope: Scope
    prefix: str
    tensors: tuple[TensorTemplate, ...]
    when: tuple[str, ...] = ()
    repeat: Repeat | None = None
    assume: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LayerTypes:
    """Where the kind of each layer is stated: a list under `key`, else every `interval`-th layer is `at_interval`."""

    key: str
    interval: str
    at_interval: str
    otherwise: str


@dataclass(frozen=True)
class SparseLayers:
    """Which layers have routed experts: those not listed under `dense`, at every `step`-th, if there are `experts`."""

    dense: str
    step: str
    experts: str


@dataclass(frozen=True)
class ExpertSizes:
    """Expressions for the number of routed experts, their hidden size and their intermediate size."""

    count: Expression
    hidden: Expression
    intermediate: Expression


def parse_section(data: Mapping[str, Any], blocks: Mapping[str, Any]) -> Section:
    """A section of a family file, with the blocks it uses put before its own tensors."""
    lines = [line for block in data.get("blocks", ()) for line in blocks[block]]
    return Section(
        scope=data["scope"],
        prefix=data["prefix"],
        tensors=tuple(parse_tensor(line) for line in [*lines, *data.get("tensors", ())]),
        when=tuple(data.get("when", ())),
        repeat=_parse_repeat(data),
        assume=tuple(data["assume"]) if "assume" in data else None,
    )


def parse_tensor(data: Mapping[str, Any]) -> TensorTemplate:
    """One tensor line of a family file."""
    return TensorTemplate(
        name=data["name"],
        shape=tuple(parse(size) for size in data["shape"]),
        kind=data["kind"],
        linear=data.get("linear", data["kind"] in LINEAR_KINDS),
        when=tuple(data.get("when", ())),
        optional_when=tuple(data.get("optional_when", ())),
        dtypes=tuple(data.get("dtypes", ())),
        layout=data.get("layout"),
        repeat=_parse_repeat(data),
        splits=tuple(data.get("splits", ())),
        held=data.get("held"),
    )


def _parse_repeat(data: Mapping[str, Any]) -> Repeat | None:
    for variable, count in data.get("repeat", {}).items():
        return Repeat(variable, parse(count))
    return None
