"""The costs of one checkpoint: what it takes on disk and in an engine's memory, and what decoding moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from checkpoint import Checkpoint
from checkpoint.families import Decoder, Family, SpecError, find_family
from checkpoint.layout import layout
from costs.caches import Caches, caches
from costs.decoding import DRAFT, Decode, Held, plain, speculative
from costs.engine import Engine, config_dtype, rotary_table
from costs.parts import Part, table_order
from costs.serving import KvDtype, Serving, StateDtype
from costs.stored import Entry, entries
from verify.case import Case
from verify.run import unsupported_format

MEMORY, DECODING, SPECULATIVE = "memory in the engine", "decoding", "speculative decoding"
"""What cannot be judged of some checkpoints."""


@dataclass(frozen=True)
class Row:
    """A part of the model: bytes on disk, and in the memory of one rank, None where that is not judged."""

    part: Part
    entries: tuple[Entry, ...]
    disk: int
    memory: int | None

    @property
    def modules(self) -> int:
        return sum(entry.count for entry in self.entries)


@dataclass(frozen=True)
class Costs:
    """Bytes of a checkpoint under the assumptions `serving`, for one rank.

    `tables` are the rotary embeddings that an engine computes. `plain` and `speculative` are steps of decoding, None
    where they are not judged or not asked for; `unjudged` says what is not judged, and why.
    """

    place: str
    family: str | None
    dtype: str | None
    serving: Serving
    rows: tuple[Row, ...]
    tables: int | None
    caches: Caches | None
    decoder: Decoder | None
    plain: Decode | None
    speculative: Decode | None
    unjudged: Mapping[str, str] = field(default_factory=dict)

    @property
    def disk(self) -> int:
        """Bytes of all tensors."""
        return sum(row.disk for row in self.rows)

    @cached_property
    def weights(self) -> int | None:
        """Bytes of the weights in the engine without the MTP head."""
        return self._held(draft=False)

    @cached_property
    def draft(self) -> int | None:
        """Bytes of the MTP head, which engines load for speculative decoding alone."""
        return self._held(draft=True)

    @property
    def memory(self) -> int | None:
        """What the engine holds when the model is loaded: weights, tables, and the MTP head if it is to draft."""
        if self.weights is None or self.draft is None:
            return None
        return self.weights + (self.tables or 0) + (self.draft if self.serving.speculative else 0)

    def _held(self, *, draft: bool) -> int | None:
        if MEMORY in self.unjudged:
            return None
        return sum(row.memory or 0 for row in self.rows if (row.part.id in DRAFT) == draft)


def costs(
    checkpoint: Checkpoint,
    *,
    tp: int = 1,
    context: int = 1024,
    streams: int = 1,
    kv_dtype: KvDtype = "auto",
    state_dtype: StateDtype = "auto",
    speculative: int = 0,
    acceptance: float = 0.0,
    text_only: bool = False,
    document: Mapping[str, Any] | None = None,
) -> Costs:
    """What `checkpoint` costs under assumptions that `Serving` describes; `document` is its layout, if known.

    Reads nothing but headers and config. Raises ValueError for assumptions that mean nothing.
    """
    serving = Serving(tp, context, streams, kv_dtype, state_dtype, speculative, acceptance, text_only)
    return account(checkpoint, serving, layout(checkpoint) if document is None else document)


def account(checkpoint: Checkpoint, serving: Serving, document: Mapping[str, Any]) -> Costs:
    """The costs under `serving` of the checkpoint whose layout is `document`."""
    config = checkpoint.config
    family = find_family(config)
    unjudged: dict[str, str] = {}
    decoder = _decoder(family, config, unjudged)
    if family is None or decoder is None:
        _without_decoder(serving, unjudged)
    if (stored_as := unsupported_format(Case(checkpoint))) is not None:
        unjudged |= dict.fromkeys((MEMORY, DECODING), f"stored as {stored_as}")
    dtype = config_dtype(*([family.text(config)] if family else []), config)
    engine = Engine(dtype, serving.tp, family, decoder)
    tied = bool(document["tied"])
    held = [Held(entry, _memory(entry, engine, serving, tied=tied)) for entry in entries(checkpoint, document)]
    kept = caches(family, decoder, config, serving, dtype) if family and decoder else None
    steps = _steps(held, decoder, kept, serving, unjudged, tied=tied)
    return Costs(
        place=str(checkpoint.root),
        family=family.name if family else None,
        dtype=dtype,
        serving=serving,
        rows=tuple(_rows(held, judged=MEMORY not in unjudged)),
        tables=rotary_table(family, config, dtype) if family and decoder and MEMORY not in unjudged else None,
        caches=kept,
        decoder=decoder,
        plain=steps[0],
        speculative=steps[1],
        unjudged=unjudged,
    )


def _decoder(family: Family | None, config: Mapping[str, Any], unjudged: dict[str, str]) -> Decoder | None:
    """What decoding takes; the reason in `unjudged` where that is not known."""
    if family is None:
        unjudged[DECODING] = "no family file knows this model_type"
        return None
    try:
        decoder = family.decoder(config)
    except SpecError as error:
        unjudged[DECODING] = "; ".join(problem.found for problem in error.problems)
        return None
    if decoder and (fault := _impossible(decoder)):
        unjudged[DECODING] = fault
        return None
    return decoder


def _impossible(decoder: Decoder) -> str | None:
    """What no model can have, of numbers that a config states."""
    if decoder.experts and not 0 < decoder.active <= decoder.experts:
        return f"a token cannot take {decoder.active} of {decoder.experts} experts"
    sides = [side for state in decoder.states for side in state.shape]
    least = min(decoder.kv_heads, decoder.kv_width, decoder.head_parts, *sides)
    return f"config.json makes the size of a cache {least}" if least < 1 else None


def _without_decoder(serving: Serving, unjudged: dict[str, str]) -> None:
    unjudged.setdefault(DECODING, "the family file does not say what a token reads")
    if serving.tp > 1:
        unjudged[MEMORY] = f"how it is divided over {serving.tp} ranks is not known: {unjudged[DECODING]}"


def _memory(entry: Entry, engine: Engine, serving: Serving, *, tied: bool) -> int:
    """A tower that is left out, and a head that is the embedding, take nothing."""
    out = entry.part.id == "vision" and serving.text_only
    return 0 if out or (tied and entry.part.id == "head") else engine.allocated(entry)


def _steps(
    held: list[Held],
    decoder: Decoder | None,
    kept: Caches | None,
    serving: Serving,
    unjudged: dict[str, str],
    *,
    tied: bool,
) -> tuple[Decode | None, Decode | None]:
    if decoder is None or kept is None or DECODING in unjudged:
        return None, None
    one = plain(held, decoder, kept, serving, tied=tied)
    if not serving.speculative:
        return one, None
    if not any(known.entry.part.id in DRAFT for known in held) or not decoder.draft_layers:
        unjudged[SPECULATIVE] = "no MTP head is stored" if decoder.draft_layers else "the config declares no MTP layer"
        return one, None
    return one, speculative(held, decoder, kept, serving, tied=tied)


def _rows(held: Iterable[Held], *, judged: bool) -> list[Row]:
    order = table_order()
    groups: dict[str, list[Held]] = {}
    for one in held:
        groups.setdefault(one.entry.part.id, []).append(one)
    return [
        Row(
            group[0].entry.part,
            tuple(one.entry for one in group),
            sum(one.entry.sizes.nbytes for one in group),
            sum(one.nbytes for one in group) if judged else None,
        )
        for _, group in sorted(groups.items(), key=lambda item: order[item[0]])
    ]
