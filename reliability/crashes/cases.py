"""The commands that are broken off, each with its input and the ways in which it writes."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from checkpoint.families import load_family
from reliability.crashes.calls import BY_NAME
from reliability.forking import warm_up
from schemas import validate

Way = Literal["new folder", "in place, exchanged", "in place, file by file", "edit", "new file"]

WAYS: tuple[Way, ...] = ("new folder", "in place, exchanged", "in place, file by file")

NO_EXCHANGE: Mapping[int, int] = {BY_NAME["renameat2"].number: errno.EINVAL}
"""What the kernel answers where a file system cannot exchange two folders."""


@dataclass(frozen=True)
class Case:
    """`arguments` of `ckpt`, `source` the folder that they begin with; all names are of the room."""

    name: str
    words: tuple[str, ...]
    source: str
    more: tuple[str, ...] = ()
    ways: tuple[Way, ...] = WAYS
    made: str = "out"
    """What is written where it is not the source."""

    def arguments(self, room: Path, way: Way) -> list[str]:
        told = [word.replace("{room}", str(room)) for word in (*self.words, *self.more)]
        told.insert(len(self.words), str(room / self.source))
        if way == "new folder":
            told += ["--out", str(room / self.made)]
        elif way in WAYS:
            told += ["--in-place"]
        return told

    def target(self, room: Path, way: Way) -> Path:
        return room / (self.made if way in ("new folder", "new file") else self.source)


def refused_calls(way: Way) -> Mapping[int, int]:
    """What the kernel does not know in this way of writing."""
    return NO_EXCHANGE if way == "in place, file by file" else {}


_BASE = ("--base", "{room}/base")
_QUIET = ("--no-verify",)

CASES = (
    Case("quantize", ("quantize",), "base", ("--preset", "experts-int4-g32", *_QUIET)),
    Case("run", ("run", "experts-int4-g32"), "base", _QUIET),
    Case("int8-head", ("int8-head",), "export", _QUIET),
    Case("graft-mtp", ("graft-mtp",), "headless", (*_BASE, *_QUIET)),
    Case("graft", ("graft",), "export", ("--from", "{room}/other", "--tensors", r"re:.*norm\.weight$", *_QUIET)),
    Case("ignore", ("ignore",), "export", ("add", "model.z", *_QUIET)),
    Case("restore-files", ("restore-files",), "headless", (*_BASE, *_QUIET)),
    Case("fixup", ("fixup",), "headless", (*_BASE, *_QUIET)),
    Case("verify --fix", ("verify",), "headless", (*_BASE, "--fix")),
    Case("card", ("card",), "linked", ("--hash",), ("edit",)),
    Case("manifest complete", ("manifest", "complete"), "linked", (), ("edit",)),
    Case("calibrate", ("calibrate", "{room}/recipe.yaml", "--model"), "base", ("--out", "{room}/set.safetensors"),
         ("new file",), "set.safetensors"),
)  # fmt: skip


_IMPORTED = (
    "cards",
    "ckpt.__main__",
    "ckpt.calibrate",
    "ckpt.card",
    "ckpt.fixing",
    "ckpt.graft_mtp",
    "ckpt.manifest",
    "surgery.calibration",
    "verify.dense",
    "verify.recompute",
)


def warm() -> None:
    """Import and compile beforehand what the cases use, so that a run is what it does and no more."""
    warm_up()
    for name in _IMPORTED:
        import_module(name)
    load_family("qwen3_5_moe")
    for schema in ("manifest", "quantization_config", "index", "layout"):
        validate({}, schema)
