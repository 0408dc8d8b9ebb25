"""Every packed module judged once against the base, for the rules that tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from verify.blocks import each, sampled
from verify.case import Case
from verify.diagnosis import Cause, Doctor
from verify.measuring import Tally
from verify.recompute import Job, Verdict, job_for, recompute


class Judgement(NamedTuple):
    """What came of recomputing a module, and what is wrong with it, if anything."""

    verdict: Verdict
    cause: Cause | None


def jobs_of(case: Case) -> dict[str, Job]:
    """The modules that can be computed again, by name."""
    return {module.name: job for module in case.packed if (job := job_for(case, module))}


def judge_modules(case: Case) -> Iterator[Judgement]:
    """Each module, at level `sample` some of each kind."""
    jobs = jobs_of(case)
    chosen = [jobs[name] for name in sampled(case, list(jobs))]
    doctor = Doctor(case)
    yield from each(case, "packed weights", chosen, lambda job: _judge(case, doctor, job))


def _recomputed(case: Case, job: Job) -> Verdict:
    if not case.measure:
        return recompute(case, job)
    tally = Tally(job)
    verdict = recompute(case, job, tally.add)
    case.notes.measure(tally.measurement)
    return verdict


def _judge(case: Case, doctor: Doctor, job: Job) -> Judgement:
    verdict = _recomputed(case, job)
    if verdict.kind == "exact" or verdict.kind == "unscaled":
        return Judgement(verdict, None)
    if verdict.kind == "far":
        return Judgement(verdict, doctor.cause(job, verdict.rows))
    suspicion = doctor.suspicion(job, verdict.rows)
    if suspicion is None and verdict.kind == "mixed":
        suspicion = Cause("departs in some rows from round-to-nearest, which all others follow to the bit")
    return Judgement(verdict, suspicion)
