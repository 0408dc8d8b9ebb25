"""Too little text: which source lacks how much, and the ways out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from checkpoint import Problem
from surgery.calibration.filling import Filled
from surgery.calibration.recipe import Calibration
from surgery.calibration.supply import Supply

REMEDY = "Add text, ask for fewer sequences or a smaller share, or let the other sources fill up: when_short: fill"


def shortages(
    wanted: Calibration, supplies: Sequence[Supply], exhausted: Collection[int], filled: Sequence[Filled]
) -> Iterator[Problem]:
    """A problem for each source that ran out; where others may fill up, one if all of them together do not suffice.

    A source that is behind its share by less than a conversation is near enough: joining whole ones is no finer.
    """
    count = wanted.held_back + wanted.sequences
    size = f"{count:,} sequences of at least {wanted.min_tokens:,} tokens"
    if wanted.when_short == "fill":
        if len(filled) < count:
            found = f"all sources make {len(filled):,} sequences: {_holds(supplies, filled)}"
            yield Problem("source-short", found, wanted.recipe, expected=size, remedy="Add text, or ask for less")
        return
    needs = {number: wanted.shares[number] * _tokens(wanted, filled) for number in sorted(exhausted)}
    longest = max((part.tokens for sequence in filled for part in sequence.parts), default=0)
    lacking = [number for number, need in needs.items() if _kept(number, filled) + longest < need]
    if len(filled) < count and not lacking:
        lacking = list(needs)
    for number in lacking:
        spec, found = wanted.sources[number], _holds([supplies[number]], filled)
        expected = f"about {needs[number]:,.0f}, {wanted.shares[number]:.0%} of {size}"
        yield Problem("source-short", found, spec.name, f"share {spec.share:g}", expected, REMEDY)


def _tokens(wanted: Calibration, filled: Sequence[Filled]) -> float:
    """Tokens of all sequences that are wanted, if the rest are like those `filled`."""
    mean = sum(len(one.ids) for one in filled) / len(filled) if filled else wanted.min_tokens
    return mean * (wanted.held_back + wanted.sequences)


def _kept(number: int, filled: Sequence[Filled]) -> int:
    """Tokens of source `number` in the sequences."""
    parts = (part for sequence in filled for part in sequence.parts)
    return sum(part.tokens for part in parts if part.conversation.source == number)


def _holds(supplies: Sequence[Supply], filled: Sequence[Filled]) -> str:
    """What the supplies gave in all, and what of it was of no use."""
    given = [one.tokens for supply in supplies for one in supply.given.values()]
    numbers = {supply.number for supply in supplies}
    parts = (part for sequence in filled for part in sequence.parts if part.conversation.source in numbers)
    lost = sum(part.lost for part in parts)
    cut = f", {lost:,} of them cut off at max_tokens" if lost else ""
    return f"{sum(given):,} tokens in {len(given):,} conversations{cut}"
