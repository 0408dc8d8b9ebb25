"""`python -m evidence.suite WORK OUT --seconds 480 [--at-once 12]`: every checkpoint in WORK to vLLM, many at a time.

The sound exports come first, then their references, then the planted defects. The first runs alone, since it compiles
kernels for all. What has a result in WORK/runs already is not run again, so a call that was cut short is gone on with;
all results so far are in OUT/runs.json.xz at the end, whatever happened.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.builds import BASE, EXPORTS, REFERENCES
from evidence.planted import PLANTED

ROOT = Path(__file__).parents[1]
RUN = Path(__file__).with_name("run.py")
SPECULATIVE = 2
LIMIT = 240.0
"""Seconds for one run; the first one, which compiles, may take as long as there is time."""


@dataclass(frozen=True)
class Job:
    """One run: of a checkpoint, with or without speculative decoding."""

    checkpoint: str
    speculative: bool = False

    @property
    def name(self) -> str:
        return self.checkpoint + ("+draft" if self.speculative else "")


@dataclass
class Running:
    """A job in its process."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float


def jobs() -> list[Job]:
    """All, in order. Defects run with drafts, which shows both models; one that raises runs once more without."""
    sound = [BASE, *(export.name for export in EXPORTS)]
    first = [Job(name, speculative) for speculative in (True, False) for name in sound]
    references = [Job(f"{name}-reference") for name in REFERENCES]
    return [*first, *references, *(Job(f"defect-{planted.name}", True) for planted in PLANTED)]


def main(arguments: list[str]) -> None:
    """Run what is open until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--after", type=Path, help="a file that is there once all checkpoints are")
    options = parser.parse_args(arguments)
    (options.work / "runs").mkdir(exist_ok=True)
    deadline = time.time() + options.seconds
    try:
        Suite(options.work, deadline, options.after).run(jobs(), options.at_once)
    finally:
        collect(options.work, options.out)


class Suite:
    """The jobs that run, in processes of their own."""

    def __init__(self, work: Path, deadline: float, after: Path | None) -> None:
        self.work = work
        self.deadline = deadline
        self.after = after
        self.running: list[Running] = []
        self.began = time.time()

    def run(self, todo: Iterable[Job], at_once: int) -> None:
        """Run the jobs without a result, and what follows from their results."""
        open_jobs = [job for job in todo if not self.is_settled(job)]
        first = open_jobs[:1]
        if first and not any(self.is_settled(job) for job in jobs()) and self.is_there(first[0]):
            self.start(open_jobs.pop(0))
            self.wait_for(0)
        while self.after and not self.after.exists() and time.time() < self.deadline:
            time.sleep(0.5)
        while open_jobs and time.time() < self.deadline - 30:
            job = open_jobs.pop(0)
            if not self.is_there(job):
                print(f"{job.name}: there is no such checkpoint", flush=True)
                continue
            self.start(job)
            for job in self.wait_for(at_once - 1):
                open_jobs += self.following(job)
        while self.running:
            for job in self.wait_for(len(self.running) - 1):
                if time.time() < self.deadline - 60:
                    for further in self.following(job):
                        self.start(further)

    def wait_for(self, count: int) -> list[Job]:
        """Wait until no more than `count` run; returns those that ended."""
        ended: list[Job] = []
        while True:
            for one in [one for one in self.running if self.has_ended(one)]:
                self.running.remove(one)
                ended.append(one.job)
                self.say(one)
            if len(self.running) <= count:
                return ended
            time.sleep(0.2)

    def start(self, job: Job) -> None:
        command = [sys.executable, "-P", str(RUN), str(self.work / job.checkpoint), "--out", str(self.path(job))]
        command += ["--speculative", str(SPECULATIVE)] if job.speculative else []
        with (self.work / "runs" / f"{job.name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/tmp", env=environment(), start_new_session=True
            )
        self.running.append(Running(job, process, time.time()))

    def has_ended(self, one: Running) -> bool:
        """Whether it is over; one that takes too long is ended."""
        if one.process.poll() is not None:
            return True
        late = time.time() > self.deadline or (len(self.running) > 1 and time.time() - one.began > LIMIT)
        if late:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        return late

    def following(self, job: Job) -> list[Job]:
        """A run without drafts, where that with drafts did not give log-probabilities."""
        if not job.speculative or not job.checkpoint.startswith("defect-"):
            return []
        plain = Job(job.checkpoint)
        told = isinstance(self.result(job).get("prompt_logprobs"), list)
        return [] if told or self.is_settled(plain) else [plain]

    def is_there(self, job: Job) -> bool:
        """Whether its checkpoint has been made."""
        return (self.work / job.checkpoint / "config.json").exists()

    def is_settled(self, job: Job) -> bool:
        """Whether it has a result of vLLM's; without one vLLM itself could not be imported."""
        return self.path(job).exists() and "versions" in self.result(job)

    def path(self, job: Job) -> Path:
        return self.work / "runs" / f"{job.name}.json"

    def result(self, job: Job) -> dict[str, Any]:
        """The result, or what is known of a run without one."""
        if self.path(job).exists():
            found: dict[str, Any] = json.loads(self.path(job).read_text())
            return found
        log = self.path(job).with_suffix(".log").read_text(errors="replace")
        return {"status": "no result", "error": log[-600:]}

    def say(self, one: Running) -> None:
        found = self.result(one.job)
        figures = {key: found.get(key) for key in ("follows", "acceptance", "repeats", "start_seconds")}
        asked = {key: found[key] for key in ("logprobs", "prompt_logprobs") if isinstance(found.get(key), str)}
        text = f"{found['status']} {figures} {asked or ''} {found.get('error', '')[:160]}"
        print(f"[{time.time() - self.began:4.0f} s] {one.job.name}: {text}", flush=True)


def environment() -> dict[str, str]:
    """That of this process, without this tree among the places of packages."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(place) != ROOT]
    own = {"VLLM_HOST_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2"}
    return os.environ | own | {"PYTHONPATH": os.pathsep.join(places)}


def collect(work: Path, out: Path) -> None:
    """All results in one compressed file; of runs without one, the end of their log."""
    found: dict[str, Any] = {}
    for log in sorted((work / "runs").glob("*.log")):
        path = log.with_suffix(".json")
        tail = log.read_text(errors="replace")[-4000:]
        found[log.stem] = json.loads(path.read_text()) if path.exists() else {"status": "no result", "log_tail": tail}
    for name in ("builds", "verdicts"):
        if (work / f"{name}.json").exists():
            found[f"({name})"] = json.loads((work / f"{name}.json").read_text())
    (out / "runs.json.xz").write_bytes(lzma.compress(json.dumps(found).encode()))
    print(f"{len(found)} results in {out / 'runs.json.xz'}")


if __name__ == "__main__":
    main(sys.argv[1:])
