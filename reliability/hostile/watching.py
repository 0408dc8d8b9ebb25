"""What this process touches while it is watched: files by their real paths, programs, connections, modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

PATHS = frozenset({"open", "os.listdir", "os.scandir", "os.chmod", "os.truncate", "os.remove", "os.rmdir", "os.mkdir"})
PAIRS = frozenset({"os.rename", "os.link", "os.symlink"})


FOLLOWING = frozenset({"open", "os.listdir", "os.scandir", "os.chmod", "os.truncate"})
"""What goes on to where a link leads."""


class Touched:
    """Real paths of what was opened, listed, made or removed."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.busy = False

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        count = 1 if event in PATHS else 2 if event in PAIRS else 0
        is_followed = event in FOLLOWING and not (event == "open" and (arguments[2] or 0) & os.O_NOFOLLOW)
        for path in arguments[count - 1 if event == "os.symlink" else 0 : count]:  # what a link says is read by nobody
            if isinstance(path, (str, bytes, os.PathLike)):
                self.paths.add(_real(os.fsdecode(path), is_followed))

    def inside(self, folder: Path) -> list[str]:
        """Those in `folder`."""
        home = os.path.realpath(folder)
        return sorted(path for path in self.paths if path == home or path.startswith(f"{home}{os.sep}"))


def _real(path: str, is_followed: bool) -> str:
    folder, name = os.path.split(path)
    return os.path.realpath(path) if is_followed else os.path.join(os.path.realpath(folder or "."), name)


@contextmanager
def watched() -> Iterator[Touched]:
    """Watch this process, its threads too."""
    touched = Touched()
    _watching().append(touched)
    try:
        yield touched
    finally:
        _watching().remove(touched)


@cache
def _watching() -> list[Touched]:
    """Those who watch; the hook, which can never be taken out again, tells them."""
    watching: list[Touched] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        for touched in watching:
            if not touched.busy and (event in PATHS or event in PAIRS):
                touched.busy = True
                try:
                    touched.see(event, arguments)
                finally:
                    touched.busy = False

    sys.addaudithook(hook)
    return watching
