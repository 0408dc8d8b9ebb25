"""What is fuzzed: a reader, what may come out of it, and where to start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

CORPUS = Path(__file__).with_name("corpus")

MEMORY_FILES = Path("/dev/shm")
"""Where files cost no disk."""


class Wrong(Exception):
    """A reader came back, with what it must not say: the oracle disagrees."""


@dataclass(frozen=True)
class Target:
    """`run` takes bytes of a stranger and returns, unless the reader behaves as none should: whatever it raises is a
    finding. `mutate` makes another input of one (libFuzzer's own mutations are used beside it); `words` are what
    inputs are made of. Inputs have at most `longest` bytes, and `asked` of them are to be tried."""

    name: str
    reads: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, Random], bytes] | None = None
    words: tuple[str, ...] = ()
    longest: int = 4096
    asked: int = 1_000_000

    @property
    def corpus(self) -> Path:
        """The minimised inputs that are kept."""
        return CORPUS / self.name

    def kept(self) -> list[Path]:
        return sorted(self.corpus.iterdir()) if self.corpus.is_dir() else []


@cache
def place() -> Path:
    """A folder for this process alone, gone when it ends."""
    return Path(_kept().name)


@cache
def _kept() -> TemporaryDirectory[str]:
    home = MEMORY_FILES if os.access(MEMORY_FILES, os.W_OK) else None
    return TemporaryDirectory(prefix="ckpt-fuzz-", dir=home)


def expect(holds: bool, what: str) -> None:
    """Raise Wrong with `what` unless it holds."""
    if not holds:
        raise Wrong(what)
