"""Where odd cases are tried, and the two commands that they are tried with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from reliability.disks.outcomes import nothing, success
from reliability.disks.state import contents
from reliability.forking import ckpt

MANIFEST = "ckpt.manifest.json"


def ignore(source: Path, *last: str | Path) -> list[str | Path]:
    """The command that most of this is tried with: it links or copies all shards and edits config.json."""
    return ["ignore", source, "add", "model.a", "--no-verify", *last]


def graft(source: Path, other: Path, *last: str | Path) -> list[str | Path]:
    """One that rewrites shards, and reads two checkpoints."""
    return ["graft", source, "--from", other, "--tensors", "re:.*norm.weight$", "--no-verify", *last]


class Ground:
    """Where cases are tried: `inputs` are not to be changed, `work` is empty for each, `expected` is what must come."""

    def __init__(self, inputs: Path, room: Path) -> None:
        self.inputs, self.room, self.work = inputs, room, room / "odd"
        self.export, self.other = inputs / "export", inputs / "other"
        self.fresh()
        self._expected: dict[str, Mapping[str, object]] = {}
        for name, words in (("ignore", ignore(self.export)), ("graft", graft(self.export, self.other))):
            ended = ckpt([*words, "--out", self.work / name])
            if ended.code:
                raise RuntimeError(ended.said)
            self._expected[name] = contents(self.work / name)

    def fresh(self) -> Path:
        """The empty folder."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        return self.work

    def model(self, folder: Path | None = None, name: str = "model") -> Path:
        """A copy of the export that may be written."""
        return Path(shutil.copytree(self.export, (folder or self.work) / name, symlinks=True))

    def makes(
        self, name: str, words: list[str | Path], made: Path, *watched: Path, before: Callable[[], object] = nothing
    ) -> str:
        """Does the command come through with what `name` makes, but for the manifest, which tells of linked files less?

        In place, what is none of the checkpoint's stays; here that is `.git`.
        """
        expected = dict(self._expected[name])
        if words[-1] == "--in-place":
            expected |= {".git": None, ".git/HEAD": (self.export / ".git/HEAD").read_bytes()}
        return success(words, made, expected, watched, before, (MANIFEST,))
