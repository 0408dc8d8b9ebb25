"""A new folder stands whole or not at all, whatever fails, is interrupted or killed, however many runs there are."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from breaking import each_failure, each_kill, quick_folder
from building import write_shard
from drafting import Inverted, contents, entries, sample, with_work

from checkpoint import Draft, Refused, WriteFailed, apply_plan, open_checkpoint, plan_for
from checkpoint import streaming as streaming_module

GRAFT = "model-graft.safetensors"


def edited(source: Path) -> Draft:
    """A draft that links a shard, rewrites one, computes in another, adds one, and writes both documents."""
    base = source.parent / "base"
    if not base.exists():
        base.mkdir()
        write_shard(base / "model.safetensors", entries("base."))
    draft = with_work(Draft.of(open_checkpoint(source)), "t4", step=2048).without(["t8"])
    new = {"base.t0": open_checkpoint(base).tensors["base.t0"]}
    return draft.added(new, GRAFT).with_config({"model_type": "other"})


def write(source: Path, target: Path) -> Path:
    draft = edited(source)
    return apply_plan(plan_for(draft, target), target, workers=2).root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = sample(tmp_path / "source")
    edited(folder)  # makes the base beside it
    return folder


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Where failures are tried by the hundred."""
    with quick_folder(tmp_path) as folder:
        yield folder


def besides(room: Path, name: str, outcome: BaseException | None) -> dict[str, Any]:
    """The contents of `room`, but for what an interrupted run says that it kept."""
    found = contents(room)
    kept = {path for path in found if path.startswith(f".{name}.ckpt-")}
    assert bool(kept) == bool(getattr(outcome, "__notes__", ())), outcome
    return {path: what for path, what in found.items() if path not in kept}


@pytest.mark.parametrize("exists", [False, True], ids=["new", "empty"])
def test_whatever_fails_at_whatever_call_leaves_everything_as_it_was(room: Path, exists: bool) -> None:
    source, target = sample(room / "source"), room / "target"
    expected = contents(write(source, room / "expected"))
    if exists:
        target.mkdir(mode=0o750)
    before = contents(room)
    failures = 0
    for call, failure, outcome in each_failure(lambda: write(source, target)):
        if outcome is None:  # not called that often
            assert contents(target) == expected
            shutil.rmtree(target)
            if exists:
                target.mkdir(mode=0o750)
        else:
            failures += 1
            assert isinstance(outcome, WriteFailed if isinstance(failure, OSError) else KeyboardInterrupt), call
        assert besides(room, "target", outcome) == before, f"{call} {failure!r}"
    assert failures > 60


def test_folders_made_on_the_way_go_when_writing_fails(tmp_path: Path, source: Path) -> None:
    before = contents(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteFailed, match="File exists"):
        write(source, tmp_path / "file" / "out")
    (tmp_path / "file").unlink()
    for _, _, outcome in each_failure(lambda: write(source, tmp_path / "a" / "b" / "c")):
        assert outcome is not None
        assert contents(tmp_path) == before
        break


def test_a_killed_run_leaves_no_target_and_the_next_one_cleans_up(room: Path) -> None:
    source, target = sample(room / "source"), room / "target"
    expected = contents(write(source, room / "expected"))
    listed = sorted(os.listdir(room))
    before = contents(source)
    kills = 0
    for point, killed in each_kill(lambda: write(source, target)):
        kills += killed
        assert contents(source) == before, point
        if target.exists():  # killed after the rename
            assert contents(target) == expected, point
            shutil.rmtree(target)
        if killed:
            write(source, target)
            assert contents(target) == expected, point
            shutil.rmtree(target)
        assert sorted(os.listdir(room)) == listed, point
    assert kills > 30


SLOW = """
import sys, time
from pathlib import Path
from drafting import Inverted, with_work
from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
source, target = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None
draft = with_work(Draft.of(open_checkpoint(source)), "t4", "t0", before=lambda block: time.sleep(0.004))
apply_plan(plan_for(draft, target), target, workers=1)
"""


def slow_run(source: Path, target: Path | None) -> subprocess.Popen[bytes]:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}"}
    return subprocess.Popen([sys.executable, "-c", SLOW, source, target or ""], env=environment)


@pytest.mark.parametrize("in_place", [False, True], ids=["new folder", "in place"])
def test_a_process_killed_at_any_time_does_no_harm(tmp_path: Path, source: Path, target: Path, in_place: bool) -> None:
    goal = None if in_place else target
    before, listed, moments = contents(source), sorted(os.listdir(tmp_path)), random.Random(7)
    for _ in range(5):
        process = slow_run(source, goal)
        staged = tmp_path / (".source.ckpt-new" if in_place else ".target.ckpt-new")
        while not staged.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert contents(source) == before
        assert not target.exists()
    process = slow_run(source, goal)
    assert process.wait() == 0
    assert sorted(os.listdir(tmp_path)) == sorted({*listed, *([] if in_place else ["target"])})
    assert contents(source) != before if in_place else "t4.out" in open_checkpoint(target).tensors


def test_of_two_runs_at_once_the_second_is_refused(tmp_path: Path, source: Path, target: Path) -> None:
    started, finish = threading.Event(), threading.Event()

    def before(block: int) -> None:
        started.set()
        finish.wait(10)

    draft = with_work(Draft.of(open_checkpoint(source)), "t4", before=before)
    first = threading.Thread(target=apply_plan, args=(plan_for(draft, target), target))
    first.start()
    try:
        assert started.wait(10)
        with pytest.raises(Refused) as caught:
            write(source, target)
        assert [problem.code for problem in caught.value.problems] == ["target-busy"]
        write(source, tmp_path / "another")
    finally:
        finish.set()
        first.join()
    assert "t4.out" in open_checkpoint(target).tensors
    assert sorted(os.listdir(tmp_path)) == ["another", "base", "source", "target"]


def test_a_lock_that_nobody_holds_and_folders_that_nobody_fills_are_leftovers(
    tmp_path: Path, source: Path, target: Path
) -> None:
    (tmp_path / ".target.ckpt-lock").write_text("")
    (tmp_path / ".target.ckpt-new" / "deep").mkdir(parents=True)
    (tmp_path / ".target.ckpt-new" / "deep" / "x").write_text("x")
    (tmp_path / ".target.ckpt-undo").mkdir()
    (tmp_path / ".target2.ckpt-new").mkdir()
    write(source, target)
    assert sorted(os.listdir(tmp_path)) == [".target2.ckpt-new", "base", "source", "target"]


def test_a_lock_is_not_followed_out_of_the_folder(tmp_path: Path, source: Path, target: Path) -> None:
    (tmp_path / ".target.ckpt-lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WriteFailed):
        write(source, target)
    assert not (tmp_path / "elsewhere").exists()


def test_names_with_brackets_and_blanks_are_names_like_others(tmp_path: Path, source: Path) -> None:
    for name in ("a [b] * ?", "[x]", "Größe 7 🤗", "-rf"):
        write(source, tmp_path / name)
        assert "t4.out" in open_checkpoint(tmp_path / name).tensors
    assert not [name for name in os.listdir(tmp_path) if "ckpt" in name]


def test_an_interrupt_waits_for_blocks_that_are_being_written(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_handles = len(os.listdir("/proc/self/fd"))
    calls = iter(range(100))

    def interrupted(shard: str, nbytes: int) -> None:
        if next(calls) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(streaming_module, "BATCH", 1)
    draft = Draft.of(open_checkpoint(source))
    work = with_work(draft, "t4", before=lambda block: time.sleep(0.001))
    with pytest.raises(KeyboardInterrupt):
        apply_plan(plan_for(work, target), target, workers=2, progress=interrupted)
    assert sorted(os.listdir(tmp_path)) == ["base", "source"]
    assert len(os.listdir("/proc/self/fd")) == open_handles
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ckpt")]
    assert isinstance(work.tensors["t4.out"].work, Inverted)  # type: ignore[union-attr]


def test_where_nothing_can_be_locked_a_run_goes_on_unless_another_may_live(
    tmp_path: Path, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "t4.out" in open_checkpoint(write(source, target)).tensors
    (tmp_path / ".other.ckpt-lock").write_text("")
    (tmp_path / ".other.ckpt-new").mkdir()
    with pytest.raises(Refused, match="another run is writing it"):
        write(source, tmp_path / "other")
    assert (tmp_path / ".other.ckpt-new").exists()
