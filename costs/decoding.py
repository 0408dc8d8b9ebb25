"""What one step of decoding reads and writes, in bytes of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoint.families import Decoder
from costs.caches import Caches
from costs.engine import padded
from costs.serving import Serving
from costs.stored import Entry

DRAFT = frozenset({"mtp", "mtp_experts"})
"""Parts that speculative decoding alone reads."""

UNREAD = DRAFT | {"vision"}
"""Parts that a step over tokens of text does not read."""


@dataclass(frozen=True)
class Held:
    """An entry and the bytes that a rank holds of it."""

    entry: Entry
    nbytes: int


@dataclass(frozen=True)
class Pass:
    """One run through the body, or all runs through the MTP head of a step: `weights` read, by part, and the caches."""

    weights: Mapping[str, int]
    kv_read: int
    kv_written: int
    state_read: int = 0
    state_written: int = 0

    @property
    def nbytes(self) -> int:
        """All that is read and written."""
        return sum(self.weights.values()) + self.kv_read + self.kv_written + self.state_read + self.state_written


@dataclass(frozen=True)
class Decode:
    """A step of `streams` streams: `body` and, in speculative decoding, `drafts`. A stream emits `emitted` tokens."""

    body: Pass
    drafts: Pass | None
    streams: int
    emitted: float

    @property
    def step(self) -> int:
        """Bytes of a step."""
        return self.body.nbytes + (self.drafts.nbytes if self.drafts else 0)

    @property
    def token(self) -> float:
        """Bytes of an emitted token, of whichever stream."""
        return self.step / (self.streams * self.emitted)

    def weights(self) -> dict[str, int]:
        """Bytes of weights read in a step, by part."""
        found = dict(self.body.weights)
        for part, nbytes in self.drafts.weights.items() if self.drafts else ():
            found[part] = found.get(part, 0) + nbytes
        return found

    def seconds(self, bandwidth: float) -> float:
        """How long a stream waits for a token at least, where memory moves `bandwidth` bytes a second."""
        return self.step / bandwidth / self.emitted


def distinct(experts: int, active: int, tokens: int) -> float:
    """The expected share of `experts` that `tokens` tokens take between them, each `active` of them.

    1 - (1 - a/E)^k: the experts of each token are drawn evenly and without regard to the others. Text that is about one
    thing takes fewer.
    """
    return 1 - (1 - active / experts) ** tokens if experts else 1.0


def plain(held: Iterable[Held], decoder: Decoder, kept: Caches, serving: Serving, *, tied: bool) -> Decode:
    """A step that decodes one token of each stream."""
    return Decode(_body(held, decoder, kept, serving, 0, tied=tied), None, serving.streams, 1.0)


def speculative(held: Iterable[Held], decoder: Decoder, kept: Caches, serving: Serving, *, tied: bool) -> Decode:
    """A step that drafts some tokens by the MTP head and verifies them together with the one before."""
    listed = list(held)
    body = _body(listed, decoder, kept, serving, serving.speculative, tied=tied)
    return Decode(body, _drafts(listed, decoder, kept, serving, tied=tied), serving.streams, serving.accepted)


def _body(held: Iterable[Held], decoder: Decoder, kept: Caches, serving: Serving, drafted: int, *, tied: bool) -> Pass:
    tokens = serving.streams * (1 + drafted)
    weights: dict[str, int] = {}
    for one in held:
        part = one.entry.part.id
        if part not in UNREAD:
            share = distinct(decoder.experts, decoder.active, tokens) if part == "experts" else 1.0
            nbytes = _rows(one, tokens, serving.tp) if part == "embedding" and not tied else round(one.nbytes * share)
            weights[part] = weights.get(part, 0) + nbytes
    return Pass(
        weights,
        kv_read=serving.streams * serving.context * kept.kv_token,
        kv_written=tokens * kept.kv_token,
        state_read=serving.streams * kept.state,
        state_written=serving.streams * kept.written(drafted),
    )


def _drafts(held: Iterable[Held], decoder: Decoder, kept: Caches, serving: Serving, *, tied: bool) -> Pass:
    """One run through the MTP head for every drafted token. vLLM gives the first one all tokens that were verified,
    those that were not accepted too (v1/spec_decode, the padded drafter batch), the later ones one of each stream.

    Each run ends in the output head, which the MTP head shares with the body, like the embedding.
    """
    runs = [serving.streams * (1 + serving.speculative), *[serving.streams] * (serving.speculative - 1)]
    weights: dict[str, int] = {}
    for one in held:
        nbytes = sum(_drafted(one, tokens, decoder, serving.tp, tied=tied) for tokens in runs)
        if nbytes:
            weights[one.entry.part.id] = weights.get(one.entry.part.id, 0) + nbytes
    return Pass(
        weights,
        kv_read=len(runs) * serving.streams * serving.context * kept.draft_kv_token,
        kv_written=sum(runs) * kept.draft_kv_token,
    )


def _drafted(one: Held, tokens: int, decoder: Decoder, ranks: int, *, tied: bool) -> int:
    """Bytes that a run over `tokens` tokens reads of an entry. A run takes one MTP layer, if there are several."""
    part = one.entry.part.id
    if part == "head" or (part == "embedding" and tied):
        return one.nbytes
    if part == "embedding":
        return _rows(one, tokens, ranks)
    if part not in DRAFT:
        return 0
    share = distinct(decoder.experts, decoder.active, tokens) if part == "mtp_experts" else 1.0
    layers = decoder.draft_layers if ".layers." in one.entry.pattern else 1
    return round(one.nbytes * share / max(layers, 1))


def _rows(one: Held, tokens: int, ranks: int) -> int:
    """Bytes of one row of the embedding for each token."""
    shape = one.entry.layout.get("shape") or (1,)
    rows = -(-padded(shape[0] or 1) // ranks)
    return tokens * (one.nbytes // rows)
