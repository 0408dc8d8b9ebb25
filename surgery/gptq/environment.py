"""The Python that llm-compressor is run in: what it has, and running our driver in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkpoint
from checkpoint import CkptError, Problem, Refused
from surgery.gptq.job import LOG, REFUSAL

ROOMS = ("checkpoint", "schemas", "recipes", "surgery", "verify")
INSTALL = 'pip install "ckpt-surgery[gptq]", or give the Python that has it as --python'
TESTED = ("0.14.",)
"""llm-compressor's releases whose code the recording has been held against."""

OLDEST_PYTHON = (3, 11)
_TAIL = 12
_CHUNK = 4096


class HandOffFailed(CkptError):
    """The process that runs llm-compressor failed, or did not do what it was asked."""

    headline = "llm-compressor did not finish; what it wrote is kept"


@dataclass(frozen=True)
class Environment:
    """`packages` maps to versions, None where not installed; `unmet` are requirements of llm-compressor that are not
    satisfied. `accelerator_bytes` is the memory of the accelerator, 0 without one."""

    executable: str
    python: str
    packages: Mapping[str, str | None]
    unmet: tuple[str, ...]
    has_class: bool
    accelerator: str | None
    accelerator_bytes: int


def probe(python: Path, model_class: str) -> Environment:
    """Ask `python` what it has. Raises Refused where it cannot be run."""
    remedy = "Give a Python in which llm-compressor is installed as --python"
    try:
        with _sources() as folder:
            run = subprocess.run(
                _command(python, ["probe", model_class]), env=_variables(folder), cwd=folder, capture_output=True,
                text=True, check=False,
            )  # fmt: skip
        found = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None
    except (OSError, ValueError, IndexError) as error:
        raise Refused(Problem("python-unusable", str(error), str(python), remedy=remedy)) from error
    if found is None:
        said = (run.stderr.strip().splitlines() or ["no word of why"])[-1]
        raise Refused(Problem("python-unusable", f"exits with {run.returncode}: {said}", str(python), remedy=remedy))
    return Environment(**{**found, "unmet": tuple(found["unmet"])})


def environment_problems(found: Environment, model_class: str | None) -> Iterator[Problem]:
    """What is missing in the environment, or of another version than llm-compressor or the recording needs."""
    place = found.executable
    version = found.packages["llmcompressor"]
    if tuple(int(part) for part in found.python.split(".")[:2]) < OLDEST_PYTHON:
        yield Problem("python-old", f"Python {found.python}", place, expected="3.11 or newer")
    if version is None:
        yield Problem("llmcompressor-absent", "llmcompressor is not installed", place, remedy=INSTALL)
    elif not version.startswith(TESTED):
        expected = " or ".join(f"{prefix}x" for prefix in TESTED)
        yield Problem("llmcompressor-untested", f"llmcompressor {version}", place, expected=expected, remedy=INSTALL)
    for wanted in found.unmet:
        name = next((package for package in found.packages if wanted.startswith(package)), wanted)
        expected = f"{wanted}, as llmcompressor {version} requires"
        yield Problem("version", f"{name} {found.packages.get(name) or 'is not installed'}", place, expected=expected)
    if model_class and found.packages["transformers"] and not found.has_class:
        found_text = f"transformers {found.packages['transformers']} has no class {model_class}"
        yield Problem("class-absent", found_text, place, expected="the class that config.json names")


def run_driver(python: Path, arguments: Sequence[str], work: Path, *, echo: bool) -> None:
    """Run an action of the driver, with what it says written to the log in `work` and, with `echo`, passed on to
    stderr. Raises Refused with its problems, HandOffFailed where it fails otherwise."""
    (work / REFUSAL).unlink(missing_ok=True)
    with _sources() as folder, (work / LOG).open("ab") as log:
        process = subprocess.Popen(
            _command(python, arguments), env=_variables(folder), cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
        )  # fmt: skip
        try:
            _pass_on(process, log, echo)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code == 3 and (work / REFUSAL).exists():
        document = json.loads((work / REFUSAL).read_text(encoding="utf-8"))
        raise Refused(Problem(**problem) for problem in document["problems"])
    if code:
        raise HandOffFailed(_failure(code, work))


def _pass_on(process: subprocess.Popen[bytes], log: Any, echo: bool) -> None:
    while chunk := process.stdout.read(_CHUNK) if process.stdout else b"":
        log.write(chunk)
        log.flush()
        if echo:
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()


def _failure(code: int, work: Path) -> Problem:
    """The end of the log, which holds the traceback."""
    said = (work / LOG).read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    last = next((line.strip() for line in reversed(said[-_TAIL:]) if line.strip()), "no word of why")
    killed = " (killed: out of memory?)" if code == -9 else ""
    return Problem("gptq-failed", f"exit code {code}{killed}: {last}", str(work / LOG), remedy="The log has it all")


def _command(python: Path, arguments: Sequence[str]) -> list[str]:
    return [str(python), "-m", "surgery.gptq.driver", *arguments]


def _variables(folder: Path) -> dict[str, str]:
    """Our sources, and no network: whatever is needed lies in the base's folder."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def _sources() -> Iterator[Path]:
    """A folder with our rooms alone: what is installed beside them belongs to this Python, not to the other."""
    home = Path(checkpoint.__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="ckpt-sources-") as name:
        for room in ROOMS:
            (Path(name) / room).symlink_to(home / room)
        yield Path(name)
