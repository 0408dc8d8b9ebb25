"""The tensors that a given config.json calls for: names, shapes, kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from checkpoint.families.template import Repeat, Scope, Section, TensorTemplate
from checkpoint.families.values import MOST_TENSORS, Values

if TYPE_CHECKING:
    from checkpoint.families.family import Family


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor the model has: its full name, shape, kind and scope.

    `dtypes` are the allowed safetensors dtypes, empty for any float; `optional` tensors may be absent.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    dtypes: tuple[str, ...]
    scope: Scope
    optional: bool


@dataclass(frozen=True)
class Layer:
    """One decoder layer: its name prefix with the final dot, and its facts (`full_attention`, `sparse`, ...)."""

    prefix: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class ExpertBlock:
    """The routed experts of one layer: `count` experts of [intermediate, hidden] under the module `owner`.

    `members` lists, for each layout, the name templates of its modules or fused parameters. `omitted` experts have no
    modules.
    """

    owner: str
    scope: Scope
    count: int
    intermediate: int
    hidden: int
    members: Mapping[str, tuple[str, ...]]
    omitted: frozenset[int] = frozenset()

    def modules(self, layout: str) -> Iterator[str]:
        """The names of the block's modules (`...experts.3.gate_proj`) or fused parameters in `layout`."""
        for member in self.members.get(layout, ()):
            if "{expert}" not in member:
                yield member
                continue
            for expert in _others(self.count, self.omitted):
                yield member.replace("{expert}", str(expert))


@dataclass(frozen=True)
class _Line:
    """A template placed in the model: its prefix filled in, its shape and conditions evaluated."""

    template: TensorTemplate
    prefix: str
    scope: Scope
    shape: tuple[int, ...]
    optional: bool
    repeats: int
    omitted: frozenset[int] = frozenset()

    @property
    def experts(self) -> str | None:
        """The module that holds the experts of which this is a tensor; None for anything else."""
        return None if self.template.layout is None else self.prefix + self.template.owner

    def tensors(self) -> Iterator[Expected]:
        template, name = self.template, self.prefix + self.template.name
        for index in _others(self.repeats, self.omitted):
            full = name if template.repeat is None else name.replace(f"{{{template.repeat.variable}}}", str(index))
            yield Expected(full, self.shape, template.kind, template.dtypes, self.scope, self.optional)


@dataclass(frozen=True)
class Spec:
    """What a checkpoint of one config holds. `layouts` lists the experts' layouts each scope may use, usual first."""

    tied: bool
    vision: bool
    mtp_layers: int
    layers: tuple[Layer, ...]
    experts: tuple[ExpertBlock, ...]
    layouts: Mapping[str, tuple[str, ...]]
    lines: tuple[_Line, ...]

    def tensors(self, layouts: Mapping[str, str] | None = None) -> dict[str, Expected]:
        """All tensors by name, the experts of scope `body` and `mtp` in the layout asked for, else the usual one.

        Raises KeyError for a layout the family does not know.
        """
        chosen = {scope: (layouts or {}).get(scope, known[0]) for scope, known in self.layouts.items()}
        for scope, layout in chosen.items():
            if layout not in self.layouts[scope]:
                raise KeyError(f"{scope} experts are stored as one of {self.layouts[scope]}, not {layout!r}")
        lines = (line for line in self.lines if line.template.layout in (None, chosen.get(line.scope)))
        return {tensor.name: tensor for line in lines for tensor in line.tensors()}

    def layouts_in(self, modules: Container[str]) -> dict[str, tuple[str, ...]]:
        """For each expert block, by owner, the layouts of which some module or fused parameter is among `modules`."""
        return {
            block.owner: tuple(
                layout for layout in block.members if any(name in modules for name in block.modules(layout))
            )
            for block in self.experts
        }

    def without(self, omitted: Mapping[str, frozenset[int]]) -> Spec:
        """The spec without some of the experts: their numbers by owner. Fused parameters stay whole."""
        none: frozenset[int] = frozenset()
        lines = (
            line if line.template.repeat is None else replace(line, omitted=omitted.get(line.experts or "", none))
            for line in self.lines
        )
        blocks = (replace(block, omitted=omitted.get(block.owner, none)) for block in self.experts)
        return replace(self, lines=tuple(lines), experts=tuple(blocks))

    def choose_layouts(self, modules: Container[str]) -> dict[str, str]:
        """The layout that most expert blocks of each scope use in `modules`; the usual one where none is present."""
        found = self.layouts_in(modules)
        votes: dict[str, Counter[str]] = {scope: Counter() for scope in self.layouts}
        for block in self.experts:
            votes[block.scope].update(found[block.owner])
        return {
            scope: votes[scope].most_common(1)[0][0] if votes[scope] else known[0]
            for scope, known in self.layouts.items()
        }


def _others(count: int, omitted: frozenset[int]) -> Iterable[int]:
    return (index for index in range(count) if index not in omitted) if omitted else range(count)


def build_spec(family: Family, values: Values) -> Spec:
    """Place every template of `family` as `values` call for; what is missing is noted in `values.faults`."""
    places = [place for section in family.sections for place in _places(family, section, values)]
    lines = tuple(line for place in places for line in _place_lines(place, values))
    total = sum(line.repeats for line in lines)
    if total > MOST_TENSORS:
        values.faults["the layers and experts"] = f"make {total:,} tensors, more than {MOST_TENSORS:,}"
    return Spec(
        tied=values.holds("tie_word_embeddings"),
        vision=bool(family.vision_config) and values.holds(str(family.vision_config)),
        mtp_layers=values.integer(family.mtp.layers_key) if family.mtp else 0,
        layers=tuple(Layer(prefix, facts) for section, prefix, facts in places if _is_decoder(section)),
        experts=tuple(_expert_blocks(family, values, places)),
        layouts=family.layouts,
        lines=lines,
    )


_Place = tuple[Section, str, tuple[str, ...]]


def _is_decoder(section: Section) -> bool:
    return section.scope == "body" and section.repeat is not None


def _places(family: Family, section: Section, values: Values) -> Iterator[_Place]:
    """A section at each value of its placeholder: (section, prefix filled in, facts of the layer)."""
    if not holds(section.when, (), values):
        return
    if section.repeat is None:
        yield section, section.prefix, section.assume or ()
        return
    count = values.count(section.repeat.count)
    facts = [section.assume or ()] * count
    if _is_decoder(section) and section.assume is None:
        facts = layer_facts(family, values, count)
    for index in range(count):
        yield section, section.prefix.replace(f"{{{section.repeat.variable}}}", str(index)), facts[index]


def layer_facts(family: Family, values: Values, count: int) -> list[tuple[str, ...]]:
    """What holds of each of `count` decoder layers: its type, and whether its MLP is `sparse` or `dense`."""
    types = _layer_types(family, values, count)
    widths = _sparse_or_dense(family, values, count)
    return [(*kind, *width) for kind, width in zip(types, widths, strict=True)]


def _layer_types(family: Family, values: Values, count: int) -> list[tuple[str, ...]]:
    rule = family.layer_types
    if rule is None:
        return [()] * count
    stated = values.sequence(rule.key, str)
    if stated is None:
        interval = max(values.integer(rule.interval), 1)
        stated = [rule.otherwise if (layer + 1) % interval else rule.at_interval for layer in range(count)]
    if len(stated) != count:
        values.faults[rule.key] = f"names {len(stated)} layers where the model has {count}"
        return [()] * count
    return [(kind,) for kind in stated]


def _sparse_or_dense(family: Family, values: Values, count: int) -> list[tuple[str, ...]]:
    rule = family.sparse_layers
    if rule is None:
        return [()] * count
    dense = frozenset(values.sequence(rule.dense, int) or ())
    step = values.integer(rule.step)
    routed = values.integer(rule.experts) > 0
    if step < 1:
        values.faults[rule.step] = f"is {step}, not a positive integer"
        return [()] * count
    sparse = [routed and layer not in dense and (layer + 1) % step == 0 for layer in range(count)]
    return [("sparse",) if layer else ("dense",) for layer in sparse]


def _place_lines(place: _Place, values: Values) -> Iterator[_Line]:
    section, prefix, facts = place
    for template in section.tensors:
        if holds(template.when, facts, values):
            shape = tuple(values.evaluate(size) for size in template.shape)
            optional = bool(template.optional_when) and holds(template.optional_when, facts, values)
            yield _Line(template, prefix, section.scope, shape, optional, _count(template.repeat, values))


def _count(repeat: Repeat | None, values: Values) -> int:
    return 1 if repeat is None else values.count(repeat.count)


def _expert_blocks(family: Family, values: Values, places: Iterable[_Place]) -> Iterator[ExpertBlock]:
    sizes = family.expert_sizes
    if sizes is None:
        return
    for section, prefix, facts in places:
        members = _members(section, prefix, facts, values)
        for owner, layouts in members.items():
            yield ExpertBlock(
                owner=owner,
                scope=section.scope,
                count=values.count(sizes.count),
                intermediate=values.evaluate(sizes.intermediate),
                hidden=values.evaluate(sizes.hidden),
                members={layout: tuple(names) for layout, names in layouts.items()},
            )


def _members(section: Section, prefix: str, facts: tuple[str, ...], values: Values) -> dict[str, dict[str, list[str]]]:
    """The name templates of the experts in one place, by owner and layout."""
    members: dict[str, dict[str, list[str]]] = {}
    for template in section.tensors:
        if template.layout is not None and holds(template.when, facts, values):
            layouts = members.setdefault(prefix + template.owner, {})
            layouts.setdefault(template.layout, []).append(prefix + template.module)
    return members


def holds(conditions: tuple[str, ...], facts: tuple[str, ...], values: Values) -> bool:
    """Whether all conditions hold: `layer.FACT`, a config flag, or `not` one of these."""
    return all(_one_holds(condition, facts, values) for condition in conditions)


def _one_holds(condition: str, facts: tuple[str, ...], values: Values) -> bool:
    name = condition.removeprefix("not ")
    held = name.removeprefix("layer.") in facts if name.startswith("layer.") else values.holds(name)
    return held != condition.startswith("not ")
