"""The process that runs llm-compressor, as seen from outside: what it says, how it ends, and that it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpoint import Refused
from surgery.gptq import HandOffFailed
from surgery.gptq.environment import run_driver

ROOT = Path(__file__).parents[1]

RUNNER = """
import sys
from pathlib import Path
from surgery.gptq.environment import run_driver
run_driver(Path(sys.argv[1]), ["gptq"], Path(sys.argv[2]), echo=False)
"""


def python(folder: Path, body: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


def test_what_the_process_says_is_passed_on_and_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_driver(python(tmp_path, 'echo to stdout; echo "$@" >&2'), ["gptq", "W"], tmp_path, echo=True)
    said = "to stdout\n-m surgery.gptq.driver gptq W\n"
    assert (tmp_path / "gptq.log").read_text() == said
    assert capfd.readouterr() == ("", said)


def test_nothing_is_passed_on_where_that_is_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_driver(python(tmp_path, "echo words"), [], tmp_path, echo=False)
    assert (tmp_path / "gptq.log").read_text() == "words\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("echo first; echo OutOfMemory: too much; exit 7", "exit code 7: OutOfMemory: too much"),
        ("exit 1", "exit code 1: no word of why"),
        ("kill -9 $$", "exit code -9 (killed: out of memory?): no word of why"),
        ("exit 3", "exit code 3: no word of why"),
    ],
)
def test_a_failure_tells_the_last_words_and_the_log(body: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(HandOffFailed) as caught:
        run_driver(python(tmp_path, body), [], tmp_path, echo=False)
    (problem,) = caught.value.problems
    assert (problem.code, problem.file, problem.found) == ("gptq-failed", str(tmp_path / "gptq.log"), found)


def test_a_refusal_comes_back_with_its_problems(tmp_path: Path) -> None:
    problem = '{"problems": [{"code": "source-short", "found": "too little", "file": "a.txt", "tensor": null}]}'
    with pytest.raises(Refused) as caught:
        run_driver(python(tmp_path, f"echo '{problem}' > {tmp_path}/refusal.json; exit 3"), [], tmp_path, echo=False)
    assert [(one.code, one.file) for one in caught.value.problems] == [("source-short", "a.txt")]


def test_a_refusal_of_an_earlier_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "refusal.json").write_text('{"problems": []}')
    with pytest.raises(HandOffFailed):
        run_driver(python(tmp_path, "exit 3"), [], tmp_path, echo=False)


def test_the_other_python_is_given_our_sources_and_none_of_our_packages(tmp_path: Path) -> None:
    run_driver(python(tmp_path, 'ls "${PYTHONPATH%%:*}"; pwd'), [], tmp_path, echo=False)
    *rooms, folder = (tmp_path / "gptq.log").read_text().split()
    assert rooms == ["checkpoint", "recipes", "schemas", "surgery", "verify"]
    assert not Path(folder).exists()


def test_the_driver_needs_nothing_that_is_not_in_the_standard_library() -> None:
    """Until it is told what to do: `-S` hides everything that is installed."""
    run = subprocess.run(
        [sys.executable, "-S", "-m", "surgery.gptq.driver"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.stderr == "usage: python -m surgery.gptq.driver probe CLASS | gptq WORK | compare WORK EXPORT\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    script = python(tmp_path, f"echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; exec sleep 60")
    code = "import signal\nfrom ckpt.__main__ import _interrupt\nsignal.signal(signal.SIGTERM, _interrupt)\n" + RUNNER
    # a group of its own, so that the signal reaches the child through the run alone
    run = subprocess.Popen(
        [sys.executable, "-c", code, script, tmp_path], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    run.send_signal(number)
    run.wait(timeout=30)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
