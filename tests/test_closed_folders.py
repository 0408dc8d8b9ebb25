"""While a checkpoint is written nobody sees more of it than before: what stands beside it is closed to others."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafting import opened, with_work
from hub import HubServer

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for

GROUP_AND_OTHERS = 0o077


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What others could do, by name of each hidden folder in `tmp_path`, whenever something is renamed or told."""
    found: dict[str, int] = {}

    def look(*_: object) -> None:
        for path in tmp_path.iterdir():
            if path.name.startswith(".") and path.is_dir():
                found[path.name] = found.get(path.name, 0) | stat.S_IMODE(path.stat().st_mode) & GROUP_AND_OTHERS

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            look()
            return call(*arguments, **more)

        return called

    for name in ("replace", "rename", "link", "fsync"):
        monkeypatch.setattr(os, name, looking(getattr(os, name)))
    return found


def test_in_place_of_a_closed_folder_nothing_is_open_meanwhile(way: str, root: Path, seen: dict[str, int]) -> None:
    root.chmod(0o700)
    draft = with_work(opened(root)[1], "t4", step=2048).with_config({"model_type": "other"})
    apply_plan(plan_for(draft, None), None)
    expected = {".model.ckpt-new"} | ({".model.ckpt-undo"} if way == "file by file" else set())
    assert seen == dict.fromkeys(expected, 0)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("umask, mode", [(0o022, 0o755), (0o077, 0o700), (0o002, 0o775), (0o027, 0o750)])
def test_a_new_folder_has_the_mode_that_umask_gives_it(umask: int, mode: int, source: Path, target: Path) -> None:
    before = os.umask(umask)
    try:
        apply_plan(plan_for(with_work(opened(source)[1], "t4"), target), target)
        target.with_name("other").mkdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == mode == stat.S_IMODE(target.with_name("other").stat().st_mode)
    assert not (target / ".ckpt-mode").exists()


def test_an_empty_folder_that_was_there_keeps_its_mode(source: Path, target: Path, seen: dict[str, int]) -> None:
    target.mkdir(0o750)
    apply_plan(plan_for(with_work(opened(source)[1], "t4"), target), target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert seen == {".target.ckpt-new": 0o050}


def test_downloads_are_closed_to_others(online: HubServer, source: Path, target: Path, seen: dict[str, int]) -> None:
    online.publish("owner/name", source)
    draft = Draft.of(open_checkpoint("hf://owner/name"))
    apply_plan(plan_for(with_work(draft, "t4"), target), target, cache=1 << 30)
    assert seen[".target.ckpt-spool"] == 0
