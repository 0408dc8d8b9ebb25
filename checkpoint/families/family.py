"""A model family: what its checkpoints are made of, read from one JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from checkpoint.families.decoding import Decoder, Decoding, build_decoder, parse_decoding
from checkpoint.families.expression import parse
from checkpoint.families.spec import Spec, build_spec
from checkpoint.families.template import (
    ExpertSizes,
    LayerTypes,
    Section,
    SparseLayers,
    TensorTemplate,
    parse_section,
)
from checkpoint.families.values import Default, Values

_VARIABLE = re.compile(r"(?<![^.])(?:\d+|\{[^.]*)(?![^.])")
"""A component of a name that is a number, or a template's placeholder."""


@dataclass(frozen=True)
class NeverPacked:
    """Modules that an engine keeps dense whatever the config says: a regex for `re.fullmatch`, and why."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class MtpInfo:
    """Where the multi-token-prediction head lives: its name prefix and the config key that counts its layers."""

    prefix: str
    layers_key: str


@dataclass(frozen=True)
class FusedSplit:
    """A fused 3-D parameter [E, len(parts) * I, H] and the per-expert projections stacked in it, in row order."""

    parameter: str
    owner: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A family file as a value. Names passed to it are checkpoint names, not those of an engine."""

    name: str
    title: str
    model_types: tuple[str, ...]
    text_config: str | None
    vision_config: str | None
    defaults: Mapping[str, Default]
    sections: tuple[Section, ...]
    layouts: Mapping[str, tuple[str, ...]]
    layer_types: LayerTypes | None
    sparse_layers: SparseLayers | None
    expert_sizes: ExpertSizes | None
    mtp: MtpInfo | None
    never_packed: tuple[NeverPacked, ...]
    fused_siblings: tuple[tuple[str, ...], ...]
    decoding: Decoding | None = None

    def text(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The section of config.json that describes the language model; the whole of it where there is no such key."""
        return _section(config, self.text_config) if self.text_config in config else config

    def mtp_layers(self, config: Mapping[str, Any]) -> int:
        """How many MTP layers the config declares; 0 for a family without an MTP head."""
        return self.values(config).integer(self.mtp.layers_key) if self.mtp else 0

    def values(self, config: Mapping[str, Any]) -> Values:
        """The config as this family's expressions and conditions read it."""
        vision = _section(config, self.vision_config) if self.vision_config else {}
        return Values(top=config, text=self.text(config), vision=vision, defaults=self.defaults)

    def spec(self, config: Mapping[str, Any]) -> Spec:
        """Every tensor that a model of this config has; SpecError naming all missing config keys."""
        values = self.values(config)
        spec = build_spec(self, values)
        values.check(self.title)
        return spec

    def decoder(self, config: Mapping[str, Any]) -> Decoder | None:
        """What decoding a token takes in a model of this config; None where the family does not say.

        Raises SpecError naming all missing config keys.
        """
        if self.decoding is None:
            return None
        values = self.values(config)
        decoder = build_decoder(self, self.decoding, values)
        values.check(self.title)
        return decoder

    def held(self, name: str) -> str | None:
        """The dtype in which vLLM holds a module or parameter whatever the config states; None for the config's."""
        template = self._template(name)
        return template.held if template else None

    def is_linear(self, module: str) -> bool:
        """Whether transformers builds `module` as nn.Linear (the routers too, as it did before version 5)."""
        template = self._modules.get(_folded(module))
        return template is not None and template.linear

    def kind(self, name: str) -> str | None:
        """The kind of a module or parameter (`router`, `norm`, `expert`, ...); None if the family has no such name."""
        template = self._template(name)
        return template.kind if template else None

    def fused_split(self, parameter: str) -> FusedSplit | None:
        """How a fused experts' parameter divides into projections; None for every other name."""
        template = self._parameters.get(_folded(parameter))
        if template is None or not template.splits:
            return None
        return FusedSplit(parameter, parameter.rpartition(".")[0], template.splits)

    def _template(self, name: str) -> TensorTemplate | None:
        folded = _folded(name)
        return self._modules.get(folded) or self._parameters.get(folded)

    @cached_property
    def _parameters(self) -> dict[str, TensorTemplate]:
        return {_folded(section.prefix + template.name): template for section, template in self._lines()}

    @cached_property
    def _modules(self) -> dict[str, TensorTemplate]:
        return {
            _folded(section.prefix + template.module): template
            for section, template in self._lines()
            if template.name.endswith(".weight")
        }

    def _lines(self) -> Iterator[tuple[Section, TensorTemplate]]:
        for section in self.sections:
            for template in section.tensors:
                yield section, template


def parse_family(name: str, data: Mapping[str, Any]) -> Family:
    """A family from its JSON document, which must satisfy `schemas/family.schema.json`."""
    return Family(
        name=name,
        title=data["title"],
        model_types=tuple(data["model_types"]),
        text_config=data.get("text_config"),
        vision_config=data.get("vision_config"),
        defaults=data.get("defaults", {}),
        sections=tuple(parse_section(section, data.get("blocks", {})) for section in data["sections"]),
        layouts={scope: tuple(names) for scope, names in data.get("layouts", {}).items()},
        layer_types=LayerTypes(**data["layer_types"]) if "layer_types" in data else None,
        sparse_layers=SparseLayers(**data["sparse_layers"]) if "sparse_layers" in data else None,
        expert_sizes=ExpertSizes(**{k: parse(v) for k, v in data["experts"].items()}) if "experts" in data else None,
        mtp=MtpInfo(**data["mtp"]) if "mtp" in data else None,
        never_packed=tuple(NeverPacked(**rule) for rule in data["never_packed"]),
        fused_siblings=tuple(tuple(names) for names in data["fused_siblings"]),
        decoding=parse_decoding(data["decoding"]) if "decoding" in data else None,
    )


def _section(config: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    section = config.get(key) if key else None
    return section if isinstance(section, Mapping) else {}


@lru_cache(maxsize=1 << 17)
def _folded(name: str) -> str:
    """The name with every number and placeholder replaced by `#`: templates and real names meet in this form."""
    return _VARIABLE.sub("#", name)
