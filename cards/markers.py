"""README.md as text with one section that is ours, between two HTML comments, and all else as people wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint import Problem, Refused
from checkpoint.errors import bounded
from checkpoint.files import stays_inside
from checkpoint.wholefile import read_whole

README = "README.md"
END = "<!-- ckpt:card end -->"
BOM = "\ufeff"
MAX_README = 16 * 1024 * 1024
"""Bytes; a card is some pages, and may have pictures in it."""

MAX_LINES = 200_000
"""Each is looked at, and compared with what the card should be."""

REPO = r"(?!\S*(?:--|\.\.))[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"
"""A repository of the Hub, which allows neither `--` nor `..` in its name."""

_BEGIN = re.compile(rf"<!-- ckpt:card begin(?P<hash> hash)?(?: repo=(?P<repo>{REPO}))? -->")
_MARKER = re.compile(r"<!-+\s*ckpt:card\b", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Settings:
    """What a section was made with that its text depends on; it stands in the opening comment."""

    hashing: bool = False
    repo: str | None = None

    @property
    def marker(self) -> str:
        return f"<!-- ckpt:card begin{' hash' * self.hashing}{f' repo={self.repo}' if self.repo else ''} -->"


@dataclass(frozen=True)
class Readme:
    """`before` + `section` + `after` is the file; `section` is None where there is none yet."""

    before: str = ""
    section: str | None = None
    after: str = ""
    settings: Settings = Settings()

    @property
    def text(self) -> str:
        return self.before + (self.section or "") + self.after

    @property
    def newline(self) -> str:
        """The line ending of the file: that of its first line."""
        found = re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found else "\n"

    def with_section(self, lines: list[str], settings: Settings) -> Readme:
        """The file with `lines` as its section: in place of the one before, else at the end, after an empty line."""
        section = self.newline.join([settings.marker, *lines, END])
        if self.section is not None:
            return replace(self, section=section, settings=settings)
        return Readme(self.before + self._gap(), section, self.newline, settings)

    def _gap(self) -> str:
        if not self.before.removeprefix(BOM):
            return ""
        ends = self.before[len(self.before.rstrip("\r\n")) :]
        present = len(re.findall(r"\r\n|\r|\n", ends))
        return self.newline * max(0, 2 - present)


def read_readme(folder: Path) -> Readme | None:
    """The README.md of `folder`; None where there is none. Raises Refused where it cannot be edited safely."""
    path = folder / README
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_file() or not stays_inside(path, folder):
        raise Refused(Problem("card-unsafe", "is not a regular file inside the folder", README))
    try:
        text = read_whole(path, MAX_README).decode()
    except OSError as error:
        raise Refused(Problem("card-unreadable", error.strerror or str(error), README)) from error
    except UnicodeDecodeError as error:
        raise Refused(Problem("card-unreadable", f"byte {error.start:,} is not UTF-8", README)) from error
    if text.count("\n") + text.count("\r") > 2 * MAX_LINES or len(text.splitlines()) > MAX_LINES:
        raise Refused(Problem("card-unreadable", f"over {MAX_LINES:,} lines", README))
    return parse_readme(text)


def parse_readme(text: str) -> Readme:
    """`text` taken apart at the markers. Raises Refused, with the lines, where they are damaged or not one pair."""
    begins: list[tuple[int, int, re.Match[str]]] = []
    ends: list[tuple[int, int]] = []
    damaged: list[int] = []
    for number, line in enumerate(_LINE.finditer(text), 1):
        words = line[0].rstrip("\r\n")
        begin = _BEGIN.fullmatch(words)
        if begin:
            begins.append((number, line.start(), begin))
        elif words == END:
            ends.append((number, line.start() + len(words)))
        elif _MARKER.search(words):
            damaged.append(number)
    problems = _pairing([number for number, _, _ in begins], [number for number, _ in ends])
    if begins and not problems:  # between a sound pair our own lines may quote anything
        damaged = [number for number in damaged if not begins[0][0] < number < ends[0][0]]
    problems += [_problem(f"line {number}: a damaged marker") for number in damaged]
    if problems:
        raise Refused(bounded(problems))
    if not begins:
        return Readme(text)
    (_, start, begin), (_, stop) = begins[0], ends[0]
    settings = Settings(begin["hash"] is not None, begin["repo"])
    return Readme(text[:start], text[start:stop], text[stop:], settings)


def _pairing(begins: list[int], ends: list[int]) -> list[Problem]:
    if not begins and not ends:
        return []
    if len(begins) == len(ends) == 1 and begins[0] < ends[0]:
        return []
    said = [f"begin in line {number}" for number in begins] + [f"end in line {number}" for number in ends]
    return [_problem(f"markers are not one pair: {', '.join(said)}")]


def _problem(found: str) -> Problem:
    expected = f"{Settings().marker} before {END}, each once, on a line of its own"
    remedy = "Mend the markers, or remove the section: it is written anew"
    return Problem("card-markers", found, README, expected=expected, remedy=remedy)
