"""A folder full of code that wants to be run: some commands over it under an audit hook; all are tried by
`python -m reliability.hostile`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reliability.hostile.execution import ROOT, heard, trials
from reliability.hostile.execution import Ways as Places
from reliability.hostile.trial import Trial, carried_out

CHOSEN = ("verify --base", "ignore", "restore-files", "card", "hook run", "layout", "diff")
OTHERS = ("weights in other formats and code of its own are reported",)


def chosen() -> list[Trial]:
    names = {*(f"nothing is run by ckpt {name}" for name in CHOSEN), *OTHERS}
    return [trial for trial in trials() if trial.name in names]


@pytest.mark.parametrize("trial", chosen(), ids=lambda trial: trial.name)
def test_nothing_of_the_folder_is_run(trial: Trial) -> None:
    carried_out(trial)


def test_all_that_was_chosen_is_there() -> None:
    assert len(chosen()) == len(CHOSEN) + len(OTHERS)


def test_what_is_run_is_heard(tmp_path: Path) -> None:
    """The hook itself: a module of the folder that is imported, a program, a pickle, a connection."""
    bait = tmp_path / "bait"
    bait.mkdir()
    (bait / "evil.py").write_text("x = 1\n")
    (bait / "sitecustomize.py").write_text("")
    code = (
        "import sys; from reliability.hostile.listening import _listen; import os\n"
        f"_listen(os.open({str(tmp_path / 'log')!r}, os.O_WRONLY | os.O_CREAT, 0o600), {str(bait)!r})\n"
        f"sys.path.insert(0, {str(bait)!r}); import evil, pickle, socket, subprocess\n"
        "pickle.loads(pickle.dumps(os.getcwd)); subprocess.run(['true'])\n"
        "try: socket.create_connection(('127.0.0.1', 9), 1)\n"
        "except OSError: pass\n"
    )
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=surroundings, check=True)
    log = (tmp_path / "log").read_text()
    for event in ("exec", "pickle.find_class", "subprocess.Popen", "socket.connect"):
        assert f'["{event}"' in log, event


def test_a_command_is_heard(tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.mkdir()
    done, events = heard(Places(bait, bait, tmp_path, tmp_path / "RUN"), ["verify", str(bait)])
    assert (done.returncode, events) == (3, [])
