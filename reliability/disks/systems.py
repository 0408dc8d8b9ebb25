"""File systems that lack what others have, and names that not every one takes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from reliability.disks.fuse import Behaviour, behaving
from reliability.disks.ground import Ground, graft, ignore
from reliability.disks.mounts import disk, memory, read_only
from reliability.disks.outcomes import Case, refusal
from reliability.disks.state import contents
from reliability.forking import ckpt


class Lacking(Behaviour):
    """Some operations are not offered."""

    def __init__(self, code: int, *operations: str) -> None:
        self.code, self.operations = code, operations

    def change(self, operation: str, name: str) -> None:
        if operation in self.operations:
            raise OSError(self.code, os.strerror(self.code))


class Exchangeless(Lacking):
    """As FAT: no step that exchanges two folders, told by EINVAL whatever else is told otherwise."""

    def change(self, operation: str, name: str) -> None:
        if operation == "exchange":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        super().change(operation, name)


class OneCase(Behaviour):
    """Names that differ by case alone are one name, as on FAT, exFAT, NTFS and most Macs."""

    def find(self, folder: Path, name: str) -> str:
        wanted = name.casefold()
        return next((entry for entry in sorted(os.listdir(folder)) if entry.casefold() == wanted), name)


def systems(ground: Ground) -> Iterator[Case]:
    room = ground.room

    def read_only_source() -> str:
        work = ground.fresh()
        with read_only(ground.inputs, room / "view") as view:
            return ground.makes("graft", [*graft(view / "export", view / "other"), "--out", work / "out"], work / "out")

    def read_only_target() -> str:
        work = ground.fresh()
        with read_only(work, room / "view") as view:
            return refusal(
                [*ignore(ground.export), "--out", view / "out"], (ground.inputs, work), "Read-only file system"
            )

    def read_only_in_place() -> str:
        model = ground.model(ground.fresh())
        with read_only(ground.work, room / "view") as view:
            return refusal([*ignore(view / model.name), "--in-place"], (ground.work,), "Read-only file system")

    yield "a source on a read-only file system", read_only_source, ""
    yield "a target on a read-only file system", read_only_target, ""
    yield "in place on a read-only file system", read_only_in_place, ""

    def elsewhere() -> str:
        with memory(room / "view") as view:
            words = [*graft(ground.export, ground.other), "--out", view / "out"]
            return ground.makes("graft", words, view / "out", ground.inputs)

    yield "a target on another file system: nothing can be linked", elsewhere, ""
    for kind in ("ext4", "xfs", "btrfs"):

        def on_disk(kind: str = kind) -> str:
            with disk(room / "view", kind) as view:
                model = ground.model(view)
                words = [*graft(model, ground.other), "--out", view / "out"]
                return ground.makes("graft", words, view / "out", ground.inputs, model) or ground.makes(
                    "graft", [*graft(model, ground.other), "--in-place"], model, view / "out"
                )

        yield f"new folder and in place on {kind}", on_disk, "reflinks" if kind in ("xfs", "btrfs") else ""
    lacking = (
        ("hard links", errno.EPERM, ("link",)), ("an exchange of folders", errno.EINVAL, ("exchange",)),
        ("hard links, symbolic links and exchange", errno.EPERM, ("link", "symlink", "exchange")),
    )  # fmt: skip
    for what, code, operations in lacking:
        for in_place in (False, True):

            def check(code: int = code, operations: tuple[str, ...] = operations, in_place: bool = in_place) -> str:
                real = ground.fresh()
                ground.model(real)
                behaviour = Exchangeless(code, *operations) if "exchange" in operations else Lacking(code, *operations)
                with behaving(real, room / "view", behaviour) as view:
                    made = view / ("model" if in_place else "out")
                    words = graft(view / "model", ground.other)
                    return ground.makes("graft", [*words, *(("--in-place",) if in_place else ("--out", made))], made)

            yield f"a file system without {what}", check, ""


def names(ground: Ground) -> Iterator[Case]:
    room = ground.room

    def folded(prepare: Callable[[Path], object], out: str, says: str) -> Callable[[], str]:
        def check() -> str:
            real = ground.fresh()
            source = ground.model(real)
            prepare(source)
            (real / "disk").mkdir()
            with behaving(real / "disk", room / "view", OneCase()) as view:
                return refusal([*ignore(source), "--out", view / out], (source, real / "disk"), says)

        return check

    two = folded(lambda source: (source / "readme.MD").write_text("other"), "out", "File exists")
    yield "side files that differ by case alone, to a file system that folds case", two, ""

    def nested() -> str:
        real = ground.fresh()
        ground.model(real)
        with behaving(real, room / "view", OneCase()) as view:
            same = refusal([*ignore(view / "model"), "--out", view / "MODEL"], (real,), "already exists")
            return same or refusal([*ignore(view / "model"), "--out", view / "MODEL" / "out"], (real,), "lies inside")

    yield "the source under a name of another case, as target or around it", nested, ""
    for name, works in (("line\nbreak", True), ("tab\tand \x1b[31mred", True), ("b" * 240, True), ("b" * 255, False)):

        def named(name: str = name, works: bool = works) -> str:
            work = ground.fresh()
            words = [*ignore(ground.export), "--out", work / name]
            if works:
                return ground.makes("ignore", words, work / name, ground.inputs)
            return refusal(words, (ground.inputs, work), "File name too long")

        yield "a target whose name is odd: line break, escape codes, 240 and 255 letters", named, "255 are refused"

    def deep() -> str:
        work = ground.fresh()
        goal = work.joinpath(*["d" * 200] * 25)
        return refusal([*ignore(ground.export), "--out", goal], (ground.inputs, work), "File name too long")

    yield "a path of 5,000 letters", deep, ""

    def side_file() -> str:
        source = ground.model(ground.fresh())
        for name in ("line\nbreak.txt", "ünï.txt", "n" * 255, "-rf", "*"):
            (source / name).write_text(name)
        ended = ckpt([*ignore(source), "--out", ground.work / "out"])
        made, known = contents(ground.work / "out"), contents(source)
        lost = [name for name in known if name.split("/")[0] != ".git" and name not in made]
        return f"{ended.said} lost {lost}" if ended.code or lost else ""

    yield "side files whose names are odd", side_file, ""
