"""Full and failing disks, odd file systems and paths: the harness in `reliability/disks`, each subject once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reliability.disks.fuse import Behaviour, behaving, can_serve
from reliability.disks.lying import ReadError, ShortReads, WrongSize
from reliability.disks.mounts import can_mount, memory, resize
from reliability.disks.outcomes import refusal, success
from reliability.disks.state import contents

ROOT = Path(__file__).parents[1]

needs_mounts = pytest.mark.skipif(not (can_mount() and can_serve()), reason="root, mount(8) and /dev/fuse are needed")


@needs_mounts
def test_whatever_a_disk_does_the_source_stays_and_the_target_is_old_or_new() -> None:
    command = [sys.executable, "-m", "reliability.disks", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") > 50


# What the harness itself rests on: a file system that is told to fail does, and one that is not does not.


@pytest.fixture
def view(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(bytes(range(256)) * 40)
    return tmp_path / "view"


@needs_mounts
def test_a_file_system_that_behaves_is_the_folder_itself(view: Path) -> None:
    real = view.parent / "real"
    with behaving(real, view, Behaviour()):
        (view / "new").mkdir()
        (view / "file").rename(view / "new" / "moved")
        (view / "link").symlink_to("new/moved")
        (view / "new" / "twin").hardlink_to(view / "new" / "moved")
        (view / "new" / "text").write_text("written")
        assert contents(view) == contents(real)
        assert (view / "link").read_bytes() == bytes(range(256)) * 40
        assert sorted(contents(real)) == ["link", "new", "new/moved", "new/text", "new/twin"]


@needs_mounts
def test_a_file_system_that_is_told_to_lie_does(view: Path) -> None:
    real = view.parent / "real"
    with behaving(real, view, ReadError("file", 5000)), (view / "file").open("rb", buffering=0) as file:
        assert len(file.read(4096)) == 4096
        with pytest.raises(OSError, match="Input/output error"):
            file.read(4096)
    with behaving(real, view, ShortReads()), (view / "file").open("rb", buffering=0) as file:
        assert len(file.read(3000)) == 1000
    with behaving(real, view, WrongSize("file", 7)):
        assert (view / "file").stat().st_size == (real / "file").stat().st_size + 7


@needs_mounts
def test_a_disk_holds_no_more_than_it_was_made_for(tmp_path: Path) -> None:
    with memory(tmp_path / "small", size=8192, inodes=4) as small:
        (small / "a").write_bytes(bytes(8192))
        with pytest.raises(OSError, match="No space left"):
            (small / "b").write_bytes(b"b")
        resize(small, 16384, 4)
        (small / "c").write_bytes(b"c")
        with pytest.raises(OSError, match="No space left"):
            (small / "d").touch()


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "x").write_text("x")
    return tmp_path


def test_a_check_tells_what_did_not_hold(room: Path) -> None:
    assert refusal(["inspect", room / "none"], (room,), "is not a folder") == ""
    assert refusal(["inspect", room / "none"], (room,), "something else").startswith("says ")
    assert refusal(["--help"], (room,), "Commands").startswith("code 0, not (3,)")
    meddling = refusal(["inspect", room / "none"], (room,), "is not a folder", lambda: (room / "x").write_text("y"))
    assert "changed: ['x']" in meddling
    assert success(["--help"], room, {"x": b"y"}) == ""
    assert success(["--help"], room, {"x": b"z"}) == "differs in ['x']"
