"""Packed weights computed again from the base, by arithmetic that shares nothing with what wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from verify.case import Case
from verify.gathering import folded
from verify.recompute import Verdict
from verify.registry import Hit, rule

REPACK = "Pack the module again from the base: ckpt quantize BASE"
HARM = "answers are worse or nonsense, and no engine can tell"
MODE_NAMES = {frozenset({"fp32"}): "fp32", frozenset({"eager"}): "eager"}
DISTINCT = 8


@rule(
    "N04",
    "packed weights are those of the base",
    cost="content",
    needs_base=True,
    evidence="recomputed by round-to-nearest in two modes; GPTQ by the error it may have",
    remedy=REPACK,
)
def packed_weights(case: Case) -> Iterable[Hit]:
    _tell_rest(case)
    yield from _hits([(one.verdict, one.cause.text) for one in case.judged if one.cause and not one.cause.taken])
    _tell(case, [one.verdict for one in case.judged if not one.cause])


@rule(
    "N05",
    "no module is another one of the base",
    cost="content",
    needs_base=True,
    evidence="gate and up swapped, experts or layers permuted: each tried where N04's bound is exceeded",
    remedy=REPACK,
)
def taken_for_another(case: Case) -> Iterable[Hit]:
    yield from _hits([(one.verdict, one.cause.text) for one in case.judged if one.cause and one.cause.taken])


def _hits(faults: Sequence[tuple[Verdict, str]]) -> Iterator[Hit]:
    """One hit for each cause, with the largest error."""
    causes = list(dict.fromkeys(cause for _, cause in faults))
    for cause in causes[:DISTINCT]:
        mine = [verdict for verdict, other in faults if other == cause]
        yield _hit([v.job.name for v in mine], cause, max(v.error for v in mine))
    rest = [verdict for verdict, cause in faults if cause in set(causes[DISTINCT:])]
    if rest:
        cause = f"{causes[DISTINCT]}, and likewise in {len(causes) - DISTINCT - 1} other ways"
        yield _hit([v.job.name for v in rest], cause, max(v.error for v in rest))


def _hit(names: list[str], cause: str, error: float) -> Hit:
    return Hit(folded(names), f"{cause} (relative error up to {error:.2g})", HARM, count=len(names))


def _tell(case: Case, sound: Sequence[Verdict]) -> None:
    """What was compared, and how it matched."""
    total = len(case.jobs)
    ways = Counter(_way(verdict) for verdict in sound if verdict.kind != "unscaled")
    for way, count in ways.most_common():
        case.notes.fact(f"{count:,} of {total:,} packed modules computed again: {way}")


def _way(verdict: Verdict) -> str:
    if verdict.kind == "exact":
        return f"exactly round-to-nearest, maths {MODE_NAMES.get(frozenset(verdict.modes), 'eager or fp32')}"
    return "not round-to-nearest, near the base as a calibrated module is"


def _tell_rest(case: Case) -> None:
    rest = len(case.packed) - len(case.jobs)
    if rest:
        what = f"the content of {rest:,} packed modules"
        case.notes.skip(
            what, "no scheme or no weight in the base, or shapes that other rules report, or bits besides 4 and 8"
        )
