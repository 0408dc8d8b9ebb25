"""All that was measured, and what it is worth: sums of each model, differences of each pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any

from checkpoint import Problem, Refused
from fidelity.judging import Candidate
from fidelity.noise import FEWEST, Difference, Trust, difference
from fidelity.prompts import PromptSet
from fidelity.references import References
from fidelity.replies import Reply
from fidelity.table import MEASURES, Case, Measure, diverges_at, form, mean, nll, weight

BASE = "base"


@dataclass(frozen=True)
class Column:
    """One model's cases, in the prompts' order."""

    name: str
    cases: tuple[Case, ...]

    def values(self, measure: Measure) -> list[float | None]:
        if self.name == BASE and not measure.of_base:
            return [None] * len(self.cases)
        return [measure.value(case) for case in self.cases]

    def summary(self, measure: Measure) -> tuple[float | None, int]:
        """The mean over prompts that have a value, and how many have."""
        pairs = list(zip(self.values(measure), self.cases, strict=True))
        known = [(value, weight(measure, case)) for value, case in pairs if value is not None]
        if not known:
            return None, 0
        return mean([value for value, _ in known], [share for _, share in known]), len(known)

    @property
    def median_nll(self) -> float | None:
        """The median over prompts of the mean NLL per token."""
        found = [value for value in map(nll, self.cases) if value is not None]
        return median(found) if found else None

    @property
    def median_divergence(self) -> float | None:
        """The median of the first differing token, over replies that differ; None where tokens are not known."""
        found = [place for place in map(diverges_at, self.cases) if place is not None]
        return median(found) if found and self.name != BASE else None

    @property
    def forms(self) -> Mapping[str, tuple[int, int]]:
        """Passed and asked, by probe."""
        counts: dict[str, tuple[int, int]] = {}
        for case in self.cases:
            if case.prompt.format is not None:
                passed, asked = counts.get(case.prompt.format["probe"], (0, 0))
                counts[case.prompt.format["probe"]] = (passed + int(form(case) or 0), asked + 1)
        return counts


@dataclass(frozen=True)
class Compared:
    """`of` minus `against`, in one measure."""

    measure: Measure
    of: str
    against: str
    found: Difference


@dataclass(frozen=True)
class Result:
    """A base's answers and candidates', measured. Differences stand in the order of measures, then of models."""

    asked: PromptSet
    references: References
    candidates: tuple[Candidate, ...]
    trust: Trust = field(default_factory=Trust)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The base first."""
        base = self.references
        pairs = list(zip(self.asked.prompts, base.replies, strict=True))
        first = Column(BASE, tuple(Case(prompt, reply, reply, reply.nll) for prompt, reply in pairs))
        return (first, *(self._column(candidate) for candidate in self.candidates))

    def _column(self, candidate: Candidate) -> Column:
        scores = candidate.nll or [None] * len(candidate.replies)
        rows = zip(self.asked.prompts, self.references.replies, candidate.replies, scores, strict=True)
        return Column(candidate.name, tuple(Case(*row) for row in rows))

    @cached_property
    def differences(self) -> tuple[Compared, ...]:
        """Of every pair of models, in every measure that both have of at least one prompt."""
        return tuple(
            Compared(measure, of.name, against.name, found)
            for measure in MEASURES
            for against, of in combinations(self.columns, 2)
            if (found := _difference(of, against, measure, self.trust)) is not None
        )

    @property
    def relaid(self) -> Mapping[str, int]:
        """Prompts that a candidate's template or tokenizer lays out otherwise than the base's, by candidate."""
        return {
            candidate.name: sum(
                own.prompt_ids != reply.prompt_ids
                for own, reply in zip(candidate.replies, self.references.replies, strict=True)
                if own.prompt_ids is not None and reply.prompt_ids is not None
            )
            for candidate in self.candidates
        }

    @property
    def resplit(self) -> Mapping[str, int]:
        """Replies of the base that a candidate's tokenizer splits into another number of tokens, by candidate."""
        return {
            candidate.name: sum(map(_is_split_otherwise, candidate.nll or (), self.references.replies))
            for candidate in self.candidates
        }


def _is_split_otherwise(nll: tuple[float, ...], reply: Reply) -> bool:
    known = reply.nll if reply.nll is not None else reply.ids
    return known is not None and len(nll) != len(known)


def _difference(of: Column, against: Column, measure: Measure, trust: Trust) -> Difference | None:
    """Over the prompts of which both have a value, and weigh it alike: of other tokens NLL is another quantity."""
    rows = zip(of.values(measure), against.values(measure), of.cases, against.cases, strict=True)
    known = [
        (one, other, weight(measure, case))
        for one, other, mine, case in rows
        if one is not None and other is not None and weight(measure, mine) == weight(measure, case)
    ]
    if not known:
        return None
    ones, others, shares = map(list, zip(*known, strict=True))
    return difference(ones, others, trust, weights=shares, rate=measure.rate)


def gate(result: Result, most: float) -> dict[str, Any]:
    """Which candidates' NLL is above the base's by more than `most`, as far as the whole interval tells.

    Refuses where that cannot be judged: NLL was not measured, or there are too few prompts.
    """
    found = [one for one in result.differences if one.measure.name == "nll" and one.against == BASE]
    problems = [
        Problem("gate-untold", f"has no NLL to compare: {_why(result, candidate)}", candidate.name)
        for candidate in result.candidates
        if candidate.name not in {one.of for one in found}
    ]
    problems += [
        Problem("gate-untold", f"NLL of {one.found.n} prompts", one.of, expected=f"at least {FEWEST} to judge by")
        for one in found
        if one.found.n < FEWEST
    ]
    if problems:
        raise Refused(problems, "the gate cannot be judged")
    return {"max_nll_increase": most, "broken": [one.of for one in found if one.found.low > most]}


def _why(result: Result, candidate: Candidate) -> str:
    return candidate.unscored or result.references.unscored or "no answer of the base has a token"
