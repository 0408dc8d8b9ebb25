"""Fuzzing in batches that add up: what was tried is in a file, and the next call goes on from there.

Each batch is a process of its own, so that what one leaves behind cannot slow down the next, and a finding ends a
batch and no more. Inputs that found something are kept beside the corpus for a person to look at.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reliability.fuzzing.execute import write_words
from reliability.fuzzing.target import Target

ROOT = Path(__file__).parents[2]
BATCH = 100_000
TIMEOUT = 20
"""Seconds on the clock that libFuzzer gives one input; `execute` judges its processor time."""

MEMORY = 1024
"""MiB that a process may take, whatever it is fed."""

_STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
_ERROR = re.compile(r"^ *=== Uncaught Python exception: ===\n(.+)$|^==\d+== ERROR: (libFuzzer: .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Tally:
    """What has been tried of a target. `edges` and `corpus` are of the last batch; `findings` say what came out."""

    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    corpus: int = 0
    findings: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> Tally:
        """That of a file, or a new one."""
        if not path.is_file():
            return Tally()
        kept = json.loads(path.read_text())
        return Tally(**{**kept, "findings": tuple(kept["findings"])})


@dataclass(frozen=True)
class Campaign:
    """Fuzzing in the folder `work`, by `python`, which has atheris; `found` inputs stay in `work/found`."""

    work: Path
    python: str = sys.executable

    def tally(self, target: Target) -> Tally:
        return Tally.read(self._tally_path(target))

    def run(self, target: Target, runs: int = BATCH) -> Tally:
        """One batch of at most `runs` inputs."""
        corpus, found = self.work / "corpus" / target.name, self.work / "found"
        corpus.mkdir(parents=True, exist_ok=True)
        found.mkdir(exist_ok=True)
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        begun = time.monotonic()
        log = self._batch(target, runs, corpus, found)
        tally = _added(self.tally(target), log, time.monotonic() - begun, runs)
        self._tally_path(target).write_text(json.dumps(asdict(tally), indent=2) + "\n")
        (self.work / f"{target.name}.log").write_text(log)
        return tally

    def _batch(self, target: Target, runs: int, corpus: Path, found: Path) -> str:
        words = self.work / f"{target.name}.dict"
        write_words(target.words, words)
        options = {
            "runs": runs,
            "max_len": target.longest,
            "timeout": TIMEOUT,
            "rss_limit_mb": MEMORY,
            "dict": words,
            "artifact_prefix": f"{found}/{target.name}-",
        }
        command = [self.python, "-m", "reliability.fuzzing.execute", target.name]
        command += [f"-{name}={value}" for name, value in options.items()]
        command += [str(corpus), *([str(target.corpus)] if target.kept() else [])]
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, check=False)
        return (done.stdout + done.stderr).decode(errors="replace")

    def _tally_path(self, target: Target) -> Path:
        return self.work / f"{target.name}.json"


def _added(tally: Tally, log: str, seconds: float, runs: int) -> Tally:
    """`tally` and what `log` tells of one batch."""
    states = [tuple(map(int, state)) for state in _STATUS.findall(log)]
    executed, edges, _, corpus = states[-1] if states else (0, 0, 0, 0)
    findings = [" ".join(filter(None, one)).strip() for one in _ERROR.findall(log)]
    if not states or (executed < runs and not findings):
        findings.append(f"the batch ended early: {log[-300:]!r}")
    return replace(
        tally,
        executions=tally.executions + executed,
        seconds=round(tally.seconds + seconds, 1),
        edges=max(edges, 0),
        corpus=corpus,
        findings=(*tally.findings, *findings),
    )


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
