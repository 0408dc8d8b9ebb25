"""What a calibration set is made of, counted on the tokens that are in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

from surgery.calibration.filling import Filled, Part
from surgery.calibration.scripts import letters_by_script
from surgery.calibration.supply import Supply


@dataclass(frozen=True)
class Share:
    """One source in a split: its part of the tokens, asked and reached, in per cent."""

    source: str
    system: str
    asked: float
    reached: float
    tokens: int
    conversations: int
    with_system: int
    """Conversations whose own system turn is in the set."""


@dataclass(frozen=True)
class Split:
    """The sequences to calibrate with, or those held back. Sizes are in tokens."""

    sequences: int
    tokens: int
    shortest: int
    longest: int
    cut: int
    """Sequences whose last conversation was cut."""
    cut_tokens: int
    conversations: int
    shares: tuple[Share, ...]
    scripts: Mapping[str, int]
    """Letters of each script in the conversations, whole ones."""
    added_tokens: Mapping[str, int]
    """How often each added token of the tokenizer occurs, special ones among them; never is 0."""
    distinct_tokens: int

    @property
    def absent_tokens(self) -> tuple[str, ...]:
        """Added tokens that never occur."""
        return tuple(token for token, count in self.added_tokens.items() if not count)


@dataclass(frozen=True)
class Found:
    """A source as it was read. `exhausted`: it had less text than its share asks for. Text is never repeated."""

    source: str
    conversations: int
    duplicates: int
    exhausted: bool


@dataclass(frozen=True)
class Report:
    """All counts of a calibration set. `vocabulary` is the number of tokens that the tokenizer knows."""

    calibration: Split
    held_back: Split
    sources: tuple[Found, ...]
    vocabulary: int
    unread_arguments: tuple[str, ...]
    """Template arguments of the recipe that the chat template does not name."""

    def document(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Report:
        """The report that `document` holds. Raises KeyError or TypeError for another document."""
        splits = {name: _split_of(document[name]) for name in ("calibration", "held_back")}
        found = tuple(Found(**source) for source in document["sources"])
        return Report(
            **splits,
            sources=found,
            vocabulary=document["vocabulary"],
            unread_arguments=tuple(document["unread_arguments"]),
        )


def found(supply: Supply, exhausted: Collection[int]) -> Found:
    """What a source held."""
    text = supply.source
    return Found(text.spec.name, len(text.pieces), text.duplicates, supply.number in exhausted)


def split_report(
    filled: Sequence[Filled], supplies: Sequence[Supply], shares: Sequence[float], added: Mapping[str, int]
) -> Split:
    """Count `filled`, which `supplies` gave in these `shares`; `added` has the ids of the tokenizer's added tokens."""
    lengths = [len(sequence.ids) for sequence in filled]
    lost = [sum(part.lost for part in sequence.parts) for sequence in filled]
    ids = Counter(token for sequence in filled for token in sequence.ids)
    parts = [part for sequence in filled for part in sequence.parts]
    words = (supplies[part.conversation.source].given[part.conversation.key].words for part in parts)
    return Split(
        sequences=len(filled),
        tokens=sum(lengths),
        shortest=min(lengths, default=0),
        longest=max(lengths, default=0),
        cut=sum(tail > 0 for tail in lost),
        cut_tokens=sum(lost),
        conversations=len(parts),
        shares=tuple(_share(supply, share, parts) for supply, share in zip(supplies, shares, strict=True)),
        scripts=dict(letters_by_script(words).most_common()),
        added_tokens={token: ids[number] for token, number in sorted(added.items(), key=itemgetter(1))},
        distinct_tokens=len(ids),
    )


def _share(supply: Supply, asked: float, parts: Sequence[Part]) -> Share:
    """What of `parts` is from `supply`."""
    own = [part for part in parts if part.conversation.source == supply.number]
    reached, total = sum(part.tokens for part in own), sum(part.tokens for part in parts)
    return Share(
        source=supply.source.spec.name,
        system=supply.source.spec.system,
        asked=round(100 * asked, 3),
        reached=round(100 * reached / total, 3) if total else 0.0,
        tokens=reached,
        conversations=len(own),
        with_system=sum(supply.given[part.conversation.key].system for part in own),
    )


def _split_of(document: Mapping[str, Any]) -> Split:
    return Split(**{**document, "shares": tuple(Share(**share) for share in document["shares"])})
