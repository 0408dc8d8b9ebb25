"""Joining conversations to sequences of tokens so that every source has its share. No files, no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Conversation(NamedTuple):
    """The token ids of conversation `key` of source number `source`."""

    source: int
    key: bytes
    ids: Sequence[int]


class Part(NamedTuple):
    """The first `tokens` ids of `conversation`, in a sequence; the rest was cut off."""

    conversation: Conversation
    tokens: int

    @property
    def lost(self) -> int:
        return len(self.conversation.ids) - self.tokens


class Filled(NamedTuple):
    """A sequence, and what it was joined of."""

    ids: tuple[int, ...]
    parts: tuple[Part, ...]


class Filler:
    """Takes conversations from `supplies`, one iterator a source; `shares` are positive, to one another as they are.

    The next conversation is always taken from the source that is furthest behind its share of the tokens. A source is
    therefore never ahead of its share by more than its own last conversation.
    """

    def __init__(self, supplies: Sequence[Iterator[Conversation]], shares: Sequence[float]) -> None:
        self._supplies = supplies
        self._shares = shares
        self.exhausted: set[int] = set()
        """Sources that had nothing left when it was their turn."""

    def fill(self, count: int, min_tokens: int, max_tokens: int | None = None) -> list[Filled]:
        """`count` sequences of at least `min_tokens` ids, fewer where the text does not suffice.

        A sequence ends with the conversation that reaches `min_tokens`, which is cut at `max_tokens` (at least
        `min_tokens`) where that is given. Shares are counted anew in each call.
        """
        taken = [0] * len(self._shares)
        sequences: list[Filled] = []
        while len(sequences) < count and (sequence := self._sequence(taken, min_tokens, max_tokens)):
            sequences.append(sequence)
        return sequences

    def _sequence(self, taken: list[int], min_tokens: int, max_tokens: int | None) -> Filled | None:
        ids: list[int] = []
        parts = []
        while len(ids) < min_tokens:
            conversation = self._next(taken)
            if conversation is None:
                return None
            room = len(conversation.ids) if max_tokens is None else max_tokens - len(ids)
            kept = conversation.ids[:room]
            ids += kept
            parts.append(Part(conversation, len(kept)))
            taken[conversation.source] += len(kept)
        return Filled(tuple(ids), tuple(parts))

    def _next(self, taken: Sequence[int]) -> Conversation | None:
        """The next conversation of the source furthest behind, of sources that have one; None if none has."""
        while len(self.exhausted) < len(self._supplies):
            live = (source for source in range(len(self._supplies)) if source not in self.exhausted)
            source = min(live, key=lambda source: taken[source] / self._shares[source])
            conversation = next(self._supplies[source], None)
            if conversation is not None:
                return conversation
            self.exhausted.add(source)
        return None
