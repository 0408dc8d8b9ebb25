"""Packed weights computed again from the base, by arithmetic that shares nothing with what wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from verify.blocks import each, sampled
from verify.case import Case
from verify.diagnosis import Doctor
from verify.gathering import folded
from verify.recompute import Job, Verdict, job_for, recompute
from verify.registry import Hit, rule

REPACK = "Pack the module again from the base: ckpt quantize BASE"
HARM = "answers are worse or nonsense, and no engine can tell"
MODE_NAMES = {frozenset({"fp32"}): "fp32", frozenset({"eager"}): "eager"}
DISTINCT = 8


@rule(
    "N04", "packed weights are those of the base", cost="content", needs_base=True, evidence="recomputed in two modes"
)
def packed_weights(case: Case) -> Iterable[Hit]:
    jobs = {module.name: job for module in case.packed if (job := job_for(case, module))}
    _tell_rest(case, len(jobs))
    chosen = [jobs[name] for name in sampled(case, list(jobs))]
    doctor = Doctor(case)
    judged = list(each(case, "packed weights", chosen, lambda job: _judge(case, doctor, job)))
    yield from _hits([(verdict, cause) for verdict, cause in judged if cause])
    _tell(case, len(jobs), [verdict for verdict, cause in judged if not cause])


def _judge(case: Case, doctor: Doctor, job: Job) -> tuple[Verdict, str | None]:
    """The verdict, and what is wrong with the module, if anything."""
    verdict = recompute(case, job)
    if verdict.kind == "exact" or verdict.kind == "unscaled":
        return verdict, None
    if verdict.kind == "far":
        return verdict, doctor.cause(job, verdict.rows)
    suspicion = doctor.suspicion(job, verdict.rows)
    if suspicion is None and verdict.kind == "mixed":
        return verdict, "departs in some rows from round-to-nearest, which all others follow to the bit"
    return verdict, suspicion


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
    return Hit(folded(names), f"{cause} (relative error up to {error:.2g})", HARM, REPACK, count=len(names))


def _tell(case: Case, total: int, sound: Sequence[Verdict]) -> None:
    """What was compared, and how it matched."""
    ways = Counter(_way(verdict) for verdict in sound if verdict.kind != "unscaled")
    for way, count in ways.most_common():
        case.notes.fact(f"{count:,} of {total:,} packed modules computed again: {way}")


def _way(verdict: Verdict) -> str:
    if verdict.kind == "exact":
        return f"exactly round-to-nearest, maths {MODE_NAMES.get(frozenset(verdict.modes), 'eager or fp32')}"
    return "not round-to-nearest, near the base as a calibrated module is"


def _tell_rest(case: Case, computed: int) -> None:
    rest = len(case.packed) - computed
    if rest:
        what = f"the content of {rest:,} packed modules"
        case.notes.skip(
            what, "no scheme or no weight in the base, or shapes that other rules report, or bits besides 4 and 8"
        )
