"""One checkpoint as a card sees it: its parts, its sizes, the verdict of the rules, and facts by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cards.parts import Entry, Row, entries, rows
from checkpoint import Checkpoint
from checkpoint.families import Family, Spec, SpecError, find_family
from checkpoint.layout import layout
from checkpoint.quantization import quantization_config
from costs import Costs, Sizes, costs, total
from verify import Case, Report, verify
from verify.engines import config_groups
from verify.rules.parallel import TILE_COLUMNS, TILE_ROWS
from verify.rules.schemes import DTYPE_FIELDS, KERNEL_BITS
from verify.run import unsupported_format

EXPERTS = ("experts", "mtp_experts")
DRAFT = ("mtp", "mtp_experts")
UNREAD = {
    "embedding": "the token embedding",
    "vision": "the vision tower",
    "mtp": "the MTP head",
    "mtp_experts": "the MTP head",
}
"""Parts that a token of text does not read, or of which it reads one row."""

DRAFT_INPUT = "mtp.fc"
RANK_RULES = ("T07", "O02")
"""Rules whose facts say on how many GPUs the checkpoint can be split."""


@dataclass(frozen=True)
class Active:
    """What one token of text reads: `parameters`, with `chosen` of `experts` routed experts a layer. `left_out` are the
    stored parts that are not counted, in words."""

    parameters: int
    chosen: int
    experts: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A checkpoint and what was learned of it. `unsupported` says what it is stored as where no rule can judge that."""

    checkpoint: Checkpoint
    document: Mapping[str, Any]
    entries: tuple[Entry, ...]
    report: Report
    ranks: tuple[str, ...]
    unsupported: str | None

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    @cached_property
    def quantization(self) -> Mapping[str, Any] | None:
        return quantization_config(self.config)

    @cached_property
    def family(self) -> Family | None:
        return find_family(self.config)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return rows(self.entries)

    @cached_property
    def sizes(self) -> Sizes:
        return total(row.sizes for row in self.rows)

    @cached_property
    def costs(self) -> Costs:
        """What an engine holds of it."""
        return costs(self.checkpoint, document=self.document)

    @cached_property
    def draft_sizes(self) -> Sizes:
        """Those of the MTP head, which engines load for speculative decoding alone."""
        return total(row.sizes for row in self.rows if row.part.id in DRAFT)

    @property
    def text(self) -> Mapping[str, Any]:
        """The section of the config that describes the language model."""
        return self.family.text(self.config) if self.family else self.config

    @property
    def dtype(self) -> str | None:
        """The config's own, as `bfloat16`."""
        places = (self.text, self.config)
        found = (place.get(key) for place in places for key in ("dtype", "torch_dtype"))
        return next((one for one in found if isinstance(one, str)), None)

    @cached_property
    def facts(self) -> frozenset[str]:
        """What holds of the checkpoint, by the names that `engines.json` uses."""
        return frozenset(_facts(self))

    @property
    def has_draft(self) -> bool:
        """Is an MTP head stored, and whole as far as the rules can tell?"""
        return "draft" in self.facts

    @cached_property
    def active(self) -> Active | None:
        """What a token reads of a mixture of experts; None for another model, or where the config does not tell."""
        chosen, spec = self.text.get("num_experts_per_tok"), _spec(self)
        experts = spec.experts[0].count if spec and spec.experts else 0
        if type(chosen) is not int or not 0 < chosen <= experts or self.sizes.unknown:
            return None
        unread = {part: words for part, words in UNREAD.items() if part != "embedding" or not self.document["tied"]}
        left_out = (unread[row.part.id] for row in self.rows if row.part.id in unread)
        read = [row for row in self.rows if row.part.id not in unread]
        routed = sum(row.sizes.parameters for row in read if row.part.id == "experts")
        others = sum(row.sizes.parameters for row in read) - routed
        return Active(others + routed * chosen // experts, chosen, experts, tuple(dict.fromkeys(left_out)))


def look_at(checkpoint: Checkpoint) -> Model:
    """Read and judge `checkpoint` by its headers and documents."""
    document = layout(checkpoint)
    return Model(
        checkpoint,
        document,
        entries(checkpoint, document),
        verify(checkpoint),
        verify(checkpoint, only=RANK_RULES).facts,
        unsupported_format(Case(checkpoint)),
    )


def _spec(model: Model) -> Spec | None:
    try:
        return model.family.spec(model.config) if model.family else None
    except SpecError:
        return None


def _facts(model: Model) -> Iterator[str]:
    if any(entry.packed for entry in model.entries):
        yield "packed"
    if len(model.checkpoint.shards) > 1:
        yield "shards"
    for entry in model.entries:
        yield f"stored:{entry.part.id}"
        if entry.packed:
            yield f"packed:{entry.part.id}"
            yield from (f"packed:{kind}" for kind in _kinds(entry))
    if model.family:
        yield f"family:{model.family.name}"
    yield from (f"class:{name}" for name in model.document["architectures"] if isinstance(name, str))
    yield from (f"finding:{finding.rule}" for finding in model.report.findings)
    if _has_draft(model):
        yield "draft"
    yield from _config_facts(model.quantization or {})


def _has_draft(model: Model) -> bool:
    """Is the MTP head of a family that has one stored, and nothing of it missing?"""
    known = model.family is not None and model.family.mtp is not None
    incomplete = any(finding.rule == "M01" for finding in model.report.findings)
    return known and not incomplete and any(entry.part.id in DRAFT for entry in model.entries)


def _kinds(entry: Entry) -> Iterator[str]:
    """Further names of what is packed in an entry."""
    expert, one = entry.part.id in EXPERTS, entry.layout
    rows, columns = one["shape"] if len(one["shape"]) == 2 else (0, 0)
    if not expert and (rows % TILE_ROWS or (columns or 0) % TILE_COLUMNS):
        yield "off_tile"
    if not expert and one["bits"] not in KERNEL_BITS:
        yield "odd_bits"
    if expert and not one["symmetric"]:
        yield "asymmetric_experts"
    if entry.pattern == DRAFT_INPUT:
        yield "mtp_fc"


def _config_facts(quantization: Mapping[str, Any]) -> Iterator[str]:
    for group in config_groups(quantization).values():
        weights = group.get("weights")
        if isinstance(weights, dict):
            if DTYPE_FIELDS & set(weights):
                yield "config:dtype_fields"
            if weights.get("actorder") in ("group", "dynamic"):
                yield "config:group_actorder"
