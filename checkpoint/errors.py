"""Every way this project refuses to go on, and how a refusal is worded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from reprlib import Repr


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what was found, what was expected, and the way out."""

    code: str
    found: str
    file: str | None = None
    tensor: str | None = None
    expected: str = ""
    remedy: str = ""

    @property
    def place(self) -> str:
        return ": ".join(part for part in (self.file, self.tensor) if part)

    def __str__(self) -> str:
        text = f"{self.place}: {self.found}" if self.place else self.found
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f". {self.remedy}"
        return escape(text)


MOST_PROBLEMS = 1_000
"""Problems of one kind that are told of one file: a hostile one has millions."""


def bounded(problems: Iterable[Problem]) -> list[Problem]:
    """`problems`, of too many the first ones and, in place of the last, a word that there are more."""
    found = list(islice(problems, MOST_PROBLEMS + 1))
    if len(found) > MOST_PROBLEMS:
        found[MOST_PROBLEMS - 1 :] = [replace(found[MOST_PROBLEMS - 1], found="and more such", tensor=None)]
    return found


_BRIEF = Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 100
_BRIEF.maxlist = _BRIEF.maxdict = 12
_BRIEF.maxlevel = 4


def brief(value: object) -> str:
    """`repr` of a JSON value that anybody may have written: of a long, deep or large one the beginning."""
    return _BRIEF.repr(value)


class CkptError(Exception):
    """Base of all errors that a user can cause or mend. Carries every problem found, not the first alone."""

    headline = "failed"

    def __init__(self, problems: Problem | Iterable[Problem], headline: str | None = None) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        if headline is not None:
            self.headline = headline
        super().__init__(self.problems, self.headline)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        return lines[0] if len(lines) == 1 else "\n".join([f"{self.headline}: {len(lines)} problems", *lines])


class UnreadableCheckpoint(CkptError):
    """The input is not a checkpoint, or one that contradicts itself."""

    headline = "cannot read the checkpoint"


class Refused(CkptError):
    """The operation would produce a wrong checkpoint, so nothing was written."""

    headline = "refused, nothing was written"


class WriteFailed(CkptError):
    """Writing stopped; the target is as it was before."""

    headline = "writing failed, the target is as it was"


class MissingExtra(CkptError):
    """A command needs a package that is not installed."""

    headline = "a package is missing"


def require(what: str, *packages: str, extra: str) -> None:
    """Raise MissingExtra where one of the packages that `what` needs, and an extra of ours brings, is not installed."""
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        found = f"{what} needs the package{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise MissingExtra(Problem("extra-missing", found, remedy=f'pip install "ckpt-surgery[{extra}]"'))


@contextmanager
def naming(path: os.PathLike[str]) -> Iterator[None]:
    """Have an OSError that comes out of this block and knows no file, or only its handle, name `path`."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, (str, bytes, os.PathLike)):
            error.filename = os.fspath(path)
        raise


LONGEST_LINE = 20_000
"""Characters of a line that are shown."""


def escape(text: str) -> str:
    """One line of `text`: control and bidirectional characters, line breaks too, are shown as escapes, so that a
    hostile name cannot drive a terminal or forge a line. Of a very long one the beginning is shown."""
    if len(text) > LONGEST_LINE:
        return f"{escape(text[:LONGEST_LINE])}... ({len(text) - LONGEST_LINE:,} more characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
