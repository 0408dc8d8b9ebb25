"""Paths that lead where one does not expect: nested, linked, mounted, relative, shared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from reliability.disks.ground import Ground, graft, ignore
from reliability.disks.mounts import bound, memory
from reliability.disks.outcomes import Case, refusal, success
from reliability.disks.state import contents


def paths(ground: Ground) -> Iterator[Case]:
    room = ground.room

    def inside(view: Callable[[Path], Path], says: str, out: str) -> Callable[[], str]:
        def check() -> str:
            source = ground.model(ground.fresh())
            return refusal([*ignore(source), "--out", view(source) / out], (ground.work,), says)

        return check

    yield "a target inside the source, and around it", inside(lambda source: source, "lies inside", "out"), ""
    yield "a target inside the source, and around it", inside(lambda source: source.parent, "already exists", ""), ""
    dots = inside(lambda source: source.parent / "x" / ".." / "model", "lies inside|No such file", "out")
    yield "`..` in paths", dots, ""

    def through_links() -> str:
        source = ground.model(ground.fresh())
        (ground.work / "link").symlink_to("model")
        return refusal([*ignore(source), "--out", ground.work / "link" / "out"], (ground.work,), "lies inside")

    yield "a target inside the source through a symbolic link", through_links, ""

    def through_mount() -> str:
        source = ground.model(ground.fresh())
        with bound(source, room / "view") as view:
            return refusal([*ignore(source), "--out", view / "out"], (source,), "lies inside")

    yield "a target inside the source through a bind mount", through_mount, ""

    def mounted() -> str:
        source = ground.model(ground.fresh())
        with memory(room / "view") as view:
            shutil.copytree(source, view, dirs_exist_ok=True)
            return refusal([*ignore(view), "--in-place"], (view,), "is a mount point")

    yield "in place on a mount point", mounted, ""

    def bind_mounted() -> str:
        source = ground.model(ground.fresh())
        with bound(source, room / "view") as view:
            return refusal([*ignore(view), "--in-place"], (source,), "mount point|busy")

    yield "in place on a bind mount of a folder", bind_mounted, ""

    def relative(words: list[str | Path], made: str) -> Callable[[], str]:
        def check() -> str:
            ground.model(ground.fresh())
            goal = ground.work / made
            return ground.makes("ignore", words, goal, before=lambda: os.chdir(ground.work / "model"))

        return check

    yield "relative paths", relative([*ignore(Path(".")), "--out", "../out"], "out"), ""
    yield "relative paths", relative([*ignore(Path("../model/../model")), "--in-place"], "model"), ""
    yield "relative paths", relative([*ignore(Path(".")), "--in-place"], "model"), "the folder one stands in"

    def cwd_gone(words: Callable[[Path, Path], list[str | Path]], works: bool) -> Callable[[], str]:
        def check() -> str:
            source, work = ground.model(ground.fresh()), ground.work
            arguments = words(source, work)
            if works:
                return ground.makes("ignore", arguments, work / "out", source, before=lambda: _lose_cwd(work))
            return refusal(arguments, (work,), "No such file|not a folder", lambda: _lose_cwd(work))

        return check

    gone = "a working folder that was deleted"
    yield gone, cwd_gone(lambda source, work: [*ignore(source), "--out", work / "out"], True), "absolute paths go on"
    yield gone, cwd_gone(lambda source, work: [*ignore(source), "--out", "out"], False), "relative ones are refused"
    yield gone, cwd_gone(lambda source, work: [*ignore(Path("model")), "--in-place"], False), ""


def _lose_cwd(work: Path) -> None:
    gone = work / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


SNAPSHOT = (
    "the blobs stay as they are; links to what changed become files, so that the snapshot is no longer its commit"
)


def links(ground: Ground) -> Iterator[Case]:
    def to(what: str) -> Callable[[], str]:
        def check() -> str:
            work = ground.fresh()
            (work / "empty").mkdir()
            (work / "out").symlink_to(what)
            return refusal([*ignore(ground.export), "--out", work / "out"], (ground.inputs, work), "already exists")

        return check

    yield "a target that is a symbolic link", to("nowhere"), "dangling"
    yield "a target that is a symbolic link", to("empty"), "to an empty folder"

    def linked_root() -> str:
        model = ground.model(ground.fresh())
        (ground.work / "link").symlink_to("model")
        fault = ground.makes("ignore", [*ignore(ground.work / "link"), "--in-place"], model)
        return fault or ("" if os.readlink(ground.work / "link") == "model" else "the link is gone")

    yield "in place on a symbolic link to a folder", linked_root, "the folder is replaced, the link stays"

    def snapshot(in_place: bool) -> Callable[[], str]:
        def check() -> str:
            blobs, commit = _cached(ground)
            words = graft(commit, ground.other)
            made = commit if in_place else ground.work / "out"
            if not in_place:
                return ground.makes("graft", [*words, "--out", made], made, blobs)
            fault = success([*words, "--in-place"], blobs, contents(blobs), (blobs,))
            shutil.copytree(made, ground.work / "seen", ignore=shutil.ignore_patterns(".git"))
            return fault or ground.makes("graft", ["manifest", "verify", made], ground.work / "seen", blobs)

        return check

    yield "a snapshot of the Hub cache, to a new folder", snapshot(False), "the blobs stay as they are"
    yield "a snapshot of the Hub cache, in place", snapshot(True), SNAPSHOT

    def twins(name: str) -> Callable[[], str]:
        def check() -> str:
            model = ground.model(ground.fresh())
            (ground.work / "twin").mkdir()
            for path in model.iterdir():
                if path.is_file():
                    os.link(path, ground.work / "twin" / path.name)
            words = ignore(model) if name == "ignore" else graft(model, ground.other)
            return ground.makes(name, [*words, "--in-place"], model, ground.work / "twin")

        return check

    yield "files with a second name elsewhere (hard links), in place", twins("ignore"), "the other name keeps its bytes"
    yield "files with a second name elsewhere (hard links), in place", twins("graft"), "the other name keeps its bytes"


def _cached(ground: Ground) -> tuple[Path, Path]:
    """The export as the Hub cache keeps it: (blobs, the folder of the commit)."""
    cache = ground.fresh() / "models--me--export"
    commit = cache / "snapshots" / ("a" * 40)
    commit.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(ground.export.iterdir())):
        if path.is_file():
            shutil.copy2(path, cache / "blobs" / f"{number:040x}")
            (commit / path.name).symlink_to(f"../../blobs/{number:040x}")
        else:
            shutil.copytree(path, commit / path.name)
    return cache / "blobs", commit
