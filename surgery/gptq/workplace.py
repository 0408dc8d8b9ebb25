"""The working folder: what a run leaves there, and whether a later one can go on from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from checkpoint import Problem
from surgery.gptq.job import CALIBRATION_SET, EXPORT, JOB, LOG, REFUSAL, RESULT, Job

_UNFINISHED = (f"{EXPORT}.part", EXPORT, RESULT, REFUSAL)
_ALL = (*_UNFINISHED, CALIBRATION_SET, JOB, LOG)


def work_problems(job: Job, work: Path) -> Iterator[Problem]:
    """A working folder that another run has left, or that is somebody else's."""
    if not work.exists() or (work.is_dir() and not any(work.iterdir())):
        return
    if not (work / JOB).is_file():
        yield Problem("work-taken", "exists, and is no working folder", str(work), remedy="Give another to --work")
    elif (work / JOB).read_text(encoding="utf-8") != job.text():
        found = "was left by a run of another recipe or base"
        yield Problem("work-differs", found, str(work), remedy="Remove it, or give another to --work")


def is_finished(job: Job, work: Path) -> bool:
    """Has a run of the same job left a whole export in `work`?"""
    whole = (work / JOB).is_file() and (work / RESULT).is_file() and (work / EXPORT).is_dir()
    return whole and not any(True for _ in work_problems(job, work))


def begin(job: Job, work: Path) -> None:
    """Make `work` ready for the driver: the job, the calibration set if there is one, and nothing half done."""
    work.mkdir(parents=True, exist_ok=True)
    (work / JOB).write_text(job.text(), encoding="utf-8")
    for name in _UNFINISHED:
        _remove(work / name)


def clear(work: Path) -> None:
    """Remove what a run has put into `work`, and `work` itself if that was all."""
    for name in _ALL:
        _remove(work / name)
    with suppress(OSError):
        work.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
