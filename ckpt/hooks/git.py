"""What the hooks ask of git. What git says comes out without the passwords that addresses of remotes hold."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from checkpoint import CkptError, Problem

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}")


LONGEST_SIZE = 19
"""Digits; a size is held in 64 bits."""


class GitFailed(CkptError):
    """Git is not there, or did not do what it was asked."""

    headline = "git failed"


@dataclass(frozen=True)
class Git:
    """The repository that `folder` is in; of a hook the one that git runs it for."""

    folder: Path = Path()

    @classmethod
    def at_top(cls, folder: Path = Path()) -> Git:
        """The repository that `folder` is in, asked from the top of its working tree, as git runs hooks: paths in
        settings and attributes are relative to it. Raises GitFailed where there is none."""
        cls(folder).run("rev-parse", "--git-dir")
        top = cls(folder).line("rev-parse", "--show-toplevel")
        return cls(Path(top) if top else folder)

    def run(self, *arguments: str, given: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
        """What `git ARGUMENTS` prints. Raises GitFailed with what it complains of."""
        done = self._done(arguments, given, environment)
        if done.returncode:
            raise _failed(arguments, done.returncode, done.stderr)
        return done.stdout

    def line(self, *arguments: str) -> str | None:
        """The line that `git ARGUMENTS` prints, None where it fails: for questions that may have no answer."""
        done = self._done(arguments)
        return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")

    def path(self, name: str) -> Path:
        """Where git keeps `name`, in its own folder or where its settings say."""
        return (self.folder / os.fsdecode(self.run("rev-parse", "--git-path", name)).removesuffix("\n")).absolute()

    def blobs(self, oids: Iterable[str]) -> Iterator[bytes]:
        """The contents of blobs, in their order. Raises GitFailed where one is not in this repository."""
        with TemporaryFile() as asked:  # a pipe would fill up while git waits for us to read
            asked.write("".join(f"{oid}\n" for oid in oids).encode())
            asked.seek(0)
            command = ["git", "-C", str(self.folder), "cat-file", "--batch"]
            with subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE) as process:
                if process.stdout:
                    yield from _contents(process.stdout)

    def _done(
        self, arguments: tuple[str, ...], given: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        command = ["git", "-C", str(self.folder), *arguments]
        surroundings = {**os.environ, **environment} if environment else None
        try:
            return subprocess.run(command, input=given, capture_output=True, env=surroundings, check=False)
        except OSError as error:
            raise GitFailed(Problem("git-missing", error.strerror or str(error), "git")) from error


def _contents(stream: IO[bytes]) -> Iterator[bytes]:
    """What `git cat-file --batch` writes: for each object a line with its kind and size, the content, a line feed."""
    while head := stream.readline().decode(errors="replace").split():
        if head[1:2] != ["blob"]:
            raise GitFailed(Problem("object-missing", f"object {head[0]} is not in this repository"))
        size = number(head[2]) if len(head) == 3 else None
        content = None if size is None else stream.read(size + 1)
        if content is None or len(content) != (size or 0) + 1:
            raise GitFailed(Problem("object-damaged", f"object {head[0]} ends early"))
        yield content[:-1]


def number(text: str) -> int | None:
    """The size that git tells; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < LONGEST_SIZE else None


def without_passwords(text: str) -> str:
    """`text` without what stands before the host of an address, and without tokens of the Hub."""
    return _TOKEN.sub("hf_...", _CREDENTIALS.sub("", text))


def _failed(arguments: tuple[str, ...], code: int, stderr: bytes) -> GitFailed:
    said = without_passwords(stderr.decode(errors="replace")).strip().splitlines() or [f"exit code {code}"]
    what = " ".join(("git", *(word for word in arguments[:2] if not word.startswith("-"))))
    return GitFailed(Problem("git-failed", line, what) for line in said)
