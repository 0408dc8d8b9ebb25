"""Names and links that lead out of a folder, files that are none: refused by name, and nothing outside is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoint.wholefile import read_whole
from reliability.fuzzing.target import Wrong
from reliability.hostile import paths, strangers
from reliability.hostile.trial import Trial, carried_out
from reliability.hostile.watching import watched


@pytest.mark.parametrize("trial", [*paths.trials(), *strangers.trials()], ids=lambda trial: trial.name)
def test_it_leads_nowhere(trial: Trial) -> None:
    carried_out(trial)


def test_what_is_touched_is_seen(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "x").write_text("x")
    (inside / "link").symlink_to(outside / "x")
    with watched() as touched:
        (inside / "x").read_text()
    assert not touched.inside(outside)
    assert touched.inside(inside)
    with watched() as touched:
        (inside / "link").read_text()
    assert touched.inside(outside)


def test_a_trial_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliability.hostile.trial.SECONDS", 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Wrong, match="hangs"):
        carried_out(Trial("waits", lambda room: print((tmp_path / "pipe").read_text())))


@pytest.mark.parametrize("size, most, said", [(3, 3, None), (4, 3, "over 3 bytes"), (0, 0, None)])
def test_a_file_is_read_up_to_its_bound(tmp_path: Path, size: int, most: int, said: str | None) -> None:
    (tmp_path / "x").write_bytes(b"a" * size)
    if said is None:
        assert read_whole(tmp_path / "x", most) == b"a" * size
    else:
        with pytest.raises(OSError, match=said):
            read_whole(tmp_path / "x", most)


def test_a_file_without_a_size_is_read_and_a_link_where_none_may_be_is_not(tmp_path: Path) -> None:
    assert b"Name:" in read_whole(Path("/proc/self/status"), 1 << 20)
    (tmp_path / "link").symlink_to("/proc/self/status")
    assert read_whole(tmp_path / "link", 1 << 20)
    with pytest.raises(OSError, match="symbolic links"):
        read_whole(tmp_path / "link", 1 << 20, linked=False)


def test_what_is_refused_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="not a regular file"):
            read_whole(tmp_path, 10)
    assert len(os.listdir("/proc/self/fd")) == before
