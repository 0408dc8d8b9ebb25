"""Runs that are broken off: killed, interrupted, without power, two at once. `make reliability` tries every boundary.

The inputs are small and boundaries are taken at intervals; what is asked of each is the same as there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub import HubServer
from uploads import REPO, written

from checkpoint.locking import Holder, lock_path, locked
from checkpoint.recovery import editing
from checkpoint.wholefile import write_whole
from reliability.crashes.calls import CALLS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the tracer knows Linux on x86-64 alone"
)

ROOT = Path(__file__).parent.parent

READING = {
    "access", "close", "dup", "dup3", "faccessat2", "fadvise64", "fcntl", "flistxattr", "flock", "fstat", "fstatfs",
    "getcwd", "getdents64", "getxattr", "ioctl", "listxattr", "llistxattr", "lseek", "lstat", "mmap", "newfstatat",
    "pread64", "preadv2", "read", "readlink", "readlinkat", "stat", "statfs", "statx",
}  # fmt: skip
"""Calls that change nothing."""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder in memory, where flushing costs nothing."""
    with tempfile.TemporaryDirectory(
        prefix="ckpt-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def template(home: Path) -> Path:
    from reliability.crashes.cases import warm
    from reliability.crashes.inputs import prepare
    from reliability.crashes.tracer import can_trace

    if not can_trace():
        pytest.skip("this process may not trace others")
    warm()
    return prepare(home / "template")


def trial(name: str, way: str, template: Path):  # type: ignore[no-untyped-def]
    from reliability.crashes.cases import CASES
    from reliability.crashes.kills import Trial

    case = next(case for case in CASES if case.name == name)
    return Trial(case, way, template, template.parent / "room")  # type: ignore[arg-type]


SAMPLE = (
    ("graft", "new folder", 37),
    ("int8-head", "in place, exchanged", 29),
    ("restore-files", "in place, file by file", 17),
    ("card", "edit", 4),
    ("manifest complete", "edit", 3),
)


@pytest.mark.parametrize("name, way, every", SAMPLE)
def test_a_killed_run_leaves_the_old_or_the_new_and_the_next_one_ends_the_same(
    template: Path, name: str, way: str, every: int
) -> None:
    from reliability.crashes.kills import Tally, kill_everywhere

    tally = Tally()
    kill_everywhere(trial(name, way, template), tally, every=every)
    assert not tally.faults
    assert tally.tried >= 3


@pytest.mark.parametrize("name, way, every", [("graft", "new folder", 47), ("card", "edit", 7)])
def test_an_interrupted_run_says_what_is_true(template: Path, name: str, way: str, every: int) -> None:
    from reliability.crashes.kills import Tally
    from reliability.crashes.signals import signal_everywhere

    tally = Tally()
    signal_everywhere(trial(name, way, template), tally, every=every)
    assert not tally.faults
    assert tally.tried >= 4


@pytest.mark.parametrize(
    "name, way", [("ignore", "new folder"), ("ignore", "in place, file by file"), ("card", "edit")]
)
def test_a_power_failure_takes_back_nothing_that_was_published(template: Path, name: str, way: str) -> None:
    from reliability.crashes.kills import Tally
    from reliability.crashes.machine import crash_everywhere

    tally = Tally()
    crash_everywhere(trial(name, way, template), tally, every=4, again=0.1)
    assert not tally.faults
    assert tally.outcomes["after"] >= 10


@pytest.mark.parametrize("way", ["new folder", "in place, exchanged"])
def test_without_flushing_a_power_failure_would_be_seen(
    template: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reliability.crashes import machine
    from reliability.crashes.kills import Tally
    from reliability.crashes.recording import Recording, recorded

    def unflushed(trial) -> Recording:  # type: ignore[no-untyped-def]
        recording = recorded(trial)
        return replace(recording, steps=tuple(step for step in recording.steps if step.kind != "sync"))

    monkeypatch.setattr(machine, "recorded", unflushed)
    tally = Tally()
    machine.crash_everywhere(trial("ignore", way, template), tally, again=0.0)
    assert any("the run said that it was done" in fault for fault in tally.faults)
    assert any("the folder is neither" in fault for fault in tally.faults)


@pytest.mark.parametrize("locks", [True, False], ids=["flock", "no flock"])
def test_of_two_at_once_the_second_is_refused_and_told_who_has_the_folder(template: Path, locks: bool) -> None:
    from reliability.crashes.kills import Tally
    from reliability.crashes.together import PAIRS, both

    tally = Tally()
    for pair in PAIRS[2:]:
        both(pair, template, template.parent / "room", tally, every=40, locks=locks)
    assert not tally.faults
    assert tally.tried >= 8


def test_without_flock_the_lock_of_a_dead_run_is_taken_over(template: Path) -> None:
    from reliability.crashes.cases import CASES
    from reliability.crashes.kills import Tally
    from reliability.crashes.together import taken_over

    tally = Tally()
    case = next(case for case in CASES if case.name == "ignore")
    taken_over(case, "new folder", template, template.parent / "room", tally, every=30)
    assert not tally.faults
    assert tally.tried


def test_a_run_changes_the_disk_by_no_call_that_the_tracer_does_not_know(template: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log, known = tmp_path / "log", {call.name for call in CALLS} | {"pwrite64"}
    words = ["ignore", template / "export", "add", "model.z", "--no-verify", "--out", tmp_path / "out"]
    command = ["strace", "-f", "-y", "-o", log, "-e", "trace=file,desc", sys.executable, "-m", "ckpt", *words]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True)
    lines = [line for line in log.read_text().splitlines() if str(tmp_path / "out") in line or ".ckpt-" in line]
    seen = {match[1] for line in lines if (match := re.match(r"\d+ +(\w+)\(", line))}
    assert seen - READING <= known
    assert {"rename", "fsync"} <= seen


def test_the_lock_says_who_holds_it_and_goes_with_its_holder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with locked(target):
        told = json.loads(lock_path(target).read_text())
        assert told["pid"] == os.getpid()
        assert told["host"] == os.uname().nodename
    assert not lock_path(target).exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"pid": "1"}', '{"pid": 1, "host": 2, "command": "", "since": "", "machine": "", "ticks": ""}'],
)
def test_a_lock_file_that_nobody_holds_is_taken_whatever_it_says(tmp_path: Path, content: str) -> None:
    lock_path(tmp_path / "model").write_text(content)
    with locked(tmp_path / "model"):
        pass
    assert not lock_path(tmp_path / "model").exists()


def test_a_holder_is_dead_only_if_it_was_a_process_of_this_machine_that_is_gone() -> None:
    mine = Holder.of_this_process()
    assert not mine.is_dead
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert replace(mine, pid=child.pid).is_dead
    assert replace(mine, ticks="1").is_dead, "another process has its number by now"
    assert replace(mine, machine=f"00000000-boot {mine.machine.split(' ')[1]}").is_dead, "the machine was started anew"
    assert not replace(mine, pid=child.pid, host="elsewhere").is_dead
    assert not replace(mine, pid=child.pid, machine=f"{mine.machine.split(' ')[0]} pid:[1]").is_dead


@pytest.mark.parametrize("journal", [None, '{"plan": "x"}', "pipe"])
def test_what_no_run_can_go_on_from_is_removed_by_whoever_reads_the_folder(source: Path, journal: str | None) -> None:
    from checkpoint import open_checkpoint

    (source.parent / ".source.ckpt-new").mkdir()
    (source.parent / ".source.ckpt-lock").touch()
    if journal == "pipe":
        os.mkfifo(source.parent / ".source.ckpt-journal")
    elif journal:
        (source.parent / ".source.ckpt-journal").write_text(journal)
    open_checkpoint(source)
    assert os.listdir(source.parent) == ["source"]


def test_what_a_run_can_go_on_from_is_left_alone_by_readers(source: Path) -> None:
    from checkpoint import open_checkpoint

    staged = source.parent / ".source.ckpt-new"
    staged.mkdir()
    first = json.dumps({"plan": "x", "folder": staged.stat().st_ino})
    (source.parent / ".source.ckpt-journal").write_text(first + "\n")
    open_checkpoint(source)
    assert staged.exists()


def test_a_file_that_a_killed_run_left_half_written_is_no_file_of_the_checkpoint(source: Path) -> None:
    from checkpoint import open_checkpoint

    half = source / ".README.md.ckpt-part"
    half.write_bytes(b"half")
    assert half.name not in open_checkpoint(source).side_files
    write_whole(b"whole", source / "README.md", "card-unwritable")
    assert (source / "README.md").read_bytes() == b"whole"
    assert not half.exists()


def test_single_files_are_edited_where_nothing_may_be_created_beside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "closed" / "model"
    folder.mkdir(parents=True)
    tmp_path.joinpath("closed").chmod(0o500)
    try:
        with editing(folder):
            write_whole(b"x", folder / "README.md", "card-unwritable")
    finally:
        tmp_path.joinpath("closed").chmod(0o700)
    assert (folder / "README.md").read_bytes() == b"x"


def test_an_upload_is_refused_while_another_run_writes_the_folder(hub: HubServer, tmp_path: Path) -> None:
    folder = written(tmp_path / "export")
    environment = {**os.environ, **hub.env()}
    command = [sys.executable, "-m", "ckpt", "upload", str(folder), REPO]
    with locked(folder):
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "another run is writing it: `" in done.stderr
    assert f"process {os.getpid()} on " in done.stderr
    assert not [request for request in hub.counts if request.method in ("POST", "PUT")]


def test_the_second_interrupt_does_not_disturb_the_cleaning_up_after_the_first() -> None:
    from checkpoint.interrupts import deferred, undisturbed

    with undisturbed():
        signal.raise_signal(signal.SIGINT)
    reached = []

    def interrupted() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
