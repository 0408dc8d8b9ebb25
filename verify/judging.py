"""Every packed module judged once against the base, for the rules that tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from verify import compiled, reference
from verify.blocks import ELEMENTS, each, sampled, total_bytes
from verify.case import Case
from verify.diagnosis import Cause, Doctor
from verify.measuring import Tally
from verify.recompute import Job, Verdict, job_for, recompute

ONCE = 1 << 14
"""Weights that the reference looks at in the time that it needs for a module of none."""


class Judgement(NamedTuple):
    """What came of recomputing a module, and what is wrong with it, if anything."""

    verdict: Verdict
    cause: Cause | None


def jobs_of(case: Case) -> dict[str, Job]:
    """The modules that can be computed again, by name."""
    return {module.name: job for module in case.packed if (job := job_for(case, module))}


def judge_modules(case: Case) -> Iterator[Judgement]:
    """Each module, at level `sample` some of each kind."""
    chosen = [case.jobs[name] for name in sampled(case, list(case.jobs))]
    fast = compiled.is_worth(sum(_weights_read(case, job) + ONCE for job in chosen))
    doctor = Doctor(case)
    nbytes = total_bytes(job.origin for job in chosen)
    yield from each(case, "packed weights", chosen, lambda job: _judge(case, doctor, job, fast), nbytes)


def _weights_read(case: Case, job: Job) -> int:
    return job.weights if case.level == "full" else min(job.weights, ELEMENTS)


def _judge(case: Case, doctor: Doctor, job: Job, fast: bool) -> Judgement:
    verdict = _verdict(case, job, compiled if fast and compiled.is_supported(job) else reference)
    if verdict.kind == "exact" or verdict.kind == "unscaled":
        return Judgement(verdict, None)
    if verdict.kind == "far":
        return Judgement(verdict, doctor.cause(job, verdict.rows))
    suspicion = doctor.suspicion(job, verdict.rows)
    if suspicion is None and verdict.kind == "mixed":
        suspicion = Cause("departs in some rows from round-to-nearest, which all others follow to the bit")
    return Judgement(verdict, suspicion)


def _verdict(case: Case, job: Job, by: ModuleType) -> Verdict:
    """Measured on the way, if that was asked for."""
    if not case.measure:
        return recompute(case, job, by.judge)
    tally = Tally(job, by.count)
    verdict = recompute(case, job, by.judge, tally.add)
    case.notes.measure(tally.measurement)
    return verdict
