"""Other people: files that one may not read, and what somebody does between plan and write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from reliability.disks.ground import Ground, graft, ignore
from reliability.disks.outcomes import Case, refusal
from reliability.disks.state import contents

NOBODY = 65534


def rights(ground: Ground) -> Iterator[Case]:
    shard = "model-00002-of-00004.safetensors"

    def denied(prepare: Callable[[Path], object], says: str, *, in_place: bool = False) -> Callable[[], str]:
        def check() -> str:
            model = ground.model(ground.fresh())
            for path in (ground.work, *ground.work.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            prepare(model)
            last: tuple[str | Path, ...] = ("--in-place",) if in_place else ("--out", ground.work / "out")
            return refusal([*ignore(model), *last], (ground.work,), says, _be_nobody, (2, 3))

        return check

    for name in (shard, "config.json", "model.safetensors.index.json", "tokenizer.json"):
        unreadable = denied(partial(_close, name), rf"{name}: Permission denied")
        yield "a file that may not be read", unreadable, "as a user without rights"
    yield "a folder that may not be entered", denied(lambda model: model.chmod(0o600), "Permission denied"), ""
    yield "a folder that may not be listed", denied(lambda model: model.chmod(0o300), "denied|not readable"), ""
    closed = denied(lambda model: model.parent.chmod(0o500), "Permission denied")
    yield "a parent folder that may not be written", closed, ""
    closed = denied(lambda model: model.parent.chmod(0o500), "Permission denied", in_place=True)
    yield "a parent folder that may not be written", closed, "in place"


def _close(name: str, model: Path) -> None:
    (model / name).chmod(0)


def _be_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def between(ground: Ground) -> Iterator[Case]:
    """What somebody does when a command has planned and not yet begun."""
    shard = "model-00002-of-00004.safetensors"

    def meanwhile(deed: Callable[[Path, Path], object], says: str, *, in_place: bool = False) -> Callable[[], str]:
        def check() -> str:
            model, other = ground.model(ground.fresh()), Path(shutil.copytree(ground.other, ground.work / "other"))
            last: tuple[str | Path, ...] = ("--in-place",) if in_place else ("--out", ground.work / "out")
            return _refused_after(deed, [*graft(model, other), *last], ground, says)

        return check

    def anew(path: Path) -> None:
        shutil.copy2(path, path.with_name("twin"))
        os.replace(path.with_name("twin"), path)

    changed = "changed since it was read"
    yield (
        "a source that is replaced between plan and write",
        meanwhile(lambda model, other: anew(model / shard), changed),
        "",
    )
    yield (
        "a base that is replaced between plan and write",
        meanwhile(lambda model, other: anew(other / shard), changed),
        "",
    )
    for name in (shard, "config.json", "model.safetensors.index.json"):
        edited = meanwhile(partial(_append, name), changed, in_place=True)
        yield "a folder that is changed between plan and write, in place", edited, ""
    gone = meanwhile(lambda model, other: (model / shard).unlink(), f"{shard}.*: No such file")
    yield "a shard that is removed between plan and write", gone, ""


def _append(name: str, model: Path, other: Path) -> None:
    with (model / name).open("a") as file:
        file.write(" ")


def _refused_after(deed: Callable[[Path, Path], object], words: list[str | Path], ground: Ground, says: str) -> str:
    """The deed is done when the plan is made; then nothing else may change."""
    import checkpoint
    from ckpt import writing

    real, model, other = checkpoint.plan_for, ground.work / "model", ground.work / "other"

    def planned(*arguments: object, **more: object) -> object:
        plan = real(*arguments, **more)  # type: ignore[arg-type]
        deed(model, other)
        return plan

    def arm() -> None:
        writing.plan_for = planned  # type: ignore[assignment, attr-defined]

    kept = contents(model), sorted(os.listdir(ground.work))
    fault = refusal(words, (), says, arm)
    model_now = contents(model)
    wrong = {name for name in kept[0] if model_now.get(name) != kept[0][name]} - {"config.json"}
    if not fault and sorted(os.listdir(ground.work)) != kept[1]:
        fault = f"left {sorted(os.listdir(ground.work))}"
    return fault or (f"changed {wrong}" if len(wrong) > 1 else "")
