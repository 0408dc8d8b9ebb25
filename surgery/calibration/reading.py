"""Conversations and texts in a file: where each lies, what it says, and every line that is neither."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from checkpoint import Problem, Refused, UnreadableCheckpoint
from checkpoint.document import parse_json
from surgery.calibration.recipe import SourceSpec

ROLES = ("system", "user", "assistant", "tool")
SHOWN = 10
"""Faulty lines of one file that are told one by one."""

BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Message = dict[str, Any]
Content = str | list[Message]
"""A plain text, or the turns of a conversation."""


class Piece(NamedTuple):
    """A conversation or a text: bytes `begin` to `end` of its file, from `line` on.

    `key` tells it from all others: the same for those that differ in white space or in the system turn only.
    """

    key: bytes
    line: int
    begin: int
    end: int


@dataclass(frozen=True)
class SourceText:
    """A file of text as it was read: no piece twice."""

    spec: SourceSpec
    data: bytes = field(repr=False)
    sha256: str
    pieces: tuple[Piece, ...]
    duplicates: int
    has_chat: bool

    def content(self, piece: Piece) -> Content:
        """What `piece` says."""
        raw = self.data[piece.begin : piece.end]
        if self.spec.path.suffix.lower() == ".txt":
            return raw.decode()
        record = json.loads(raw)
        content: Content = record["messages"] if "messages" in record else record["text"]
        return content


def read_source(spec: SourceSpec) -> SourceText:
    """Read a file of text. Refuses one with faulty lines, with all of them, or with no text at all."""
    try:
        data = spec.path.read_bytes()
    except OSError as error:
        raise Refused(Problem("source-unreadable", error.strerror or str(error), spec.name)) from error
    problems: list[Problem] = []
    spans = _paragraphs if spec.path.suffix.lower() == ".txt" else _lines
    read = _text if spec.path.suffix.lower() == ".txt" else _record
    pieces, has_chat = [], False
    for line, begin, end in spans(data):
        try:
            content = read(data[begin:end], partial(Problem, file=spec.name, tensor=f"line {line}"))
        except UnreadableCheckpoint as fault:
            problems += fault.problems
            continue
        has_chat |= not isinstance(content, str)
        pieces.append(Piece(_key(content), line, begin, end))
    if not pieces and not problems:
        problems = [Problem("source-empty", "holds no text", spec.name, expected="a conversation or a text a line")]
    if problems:
        raise Refused(_shortened(problems, spec.name))
    distinct = {piece.key: piece for piece in reversed(pieces)}
    kept = tuple(sorted(distinct.values(), key=lambda piece: piece.begin))
    return SourceText(spec, data, hashlib.sha256(data).hexdigest(), kept, len(pieces) - len(kept), has_chat)


def has_system(content: Content) -> bool:
    return not isinstance(content, str) and any(message["role"] == "system" for message in content)


def _lines(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(line number, begin, end) of every line that is not blank."""
    position = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    for number, line in enumerate(data[position:].split(b"\n"), 1):
        if line.strip():
            yield number, position, position + len(line)
        position += len(line) + 1


def _paragraphs(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(line number, begin, end) of every run of lines between blank ones."""
    position = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    number = 1
    for gap in [*BLANK_LINES.finditer(data), None]:
        end, after = gap.span() if gap else (len(data), len(data))
        begin = end - len(data[position:end].lstrip(b"\r\n"))
        if data[begin:end].strip():
            yield number + data.count(b"\n", position, begin), begin, end
        number += data.count(b"\n", position, after)
        position = after


def _text(raw: bytes, fault: partial[Problem]) -> Content:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UnreadableCheckpoint(fault("source-line", f"no UTF-8 ({error.reason})")) from error


def _record(raw: bytes, fault: partial[Problem]) -> Content:
    """The conversation or text of a JSON line. Raises UnreadableCheckpoint with all that is wrong with it."""
    try:
        record = parse_json(raw, "")
    except UnreadableCheckpoint as error:
        words = [": ".join(filter(None, (problem.tensor, problem.found))) for problem in error.problems]
        raise UnreadableCheckpoint([fault("source-line", text) for text in words]) from error
    kinds = [kind for kind in ("messages", "text") if kind in record]
    if len(kinds) != 1:
        found = "both messages and text" if kinds else f"keys {', '.join(map(repr, record)) or 'none'}"
        raise UnreadableCheckpoint(fault("source-line", found, expected="either messages or text"))
    content: Content = record[kinds[0]]
    problems = list(_text_problems(content, fault) if kinds == ["text"] else _chat_problems(content, fault))
    if problems:
        raise UnreadableCheckpoint(problems)
    return content


def _text_problems(text: Any, fault: partial[Problem]) -> Iterator[Problem]:
    if not isinstance(text, str) or not text.strip():
        yield fault("source-line", f"text is {_named(text)}", expected="a text")


def _chat_problems(messages: Any, fault: partial[Problem]) -> Iterator[Problem]:
    if not isinstance(messages, list) or not messages:
        yield fault("source-line", f"messages is {_named(messages)}", expected="a list of turns")
        return
    for number, message in enumerate(messages, 1):
        yield from _turn_problems(message, f"turn {number}", fault)
    if all(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        yield fault("source-line", "a system turn alone", expected="a turn of user or assistant")


def _turn_problems(message: Any, turn: str, fault: partial[Problem]) -> Iterator[Problem]:
    if not isinstance(message, dict):
        yield fault("source-line", f"{turn} is {_named(message)}", expected="an object with role and content")
        return
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        yield fault("source-role", f"{turn} has the role {_named(role)}", expected=f"one of {', '.join(ROLES)}")
    wordless = message.get("tool_calls") and content in (None, "")
    if not wordless and (not isinstance(content, str) or not content.strip()):
        yield fault("source-line", f"the content of {turn} is {_named(content)}", expected="a text")


def _named(value: Any) -> str:
    """A value as a message shows it: short ones as they are, others by what they are."""
    if value is None:
        return "missing"
    if isinstance(value, str) and not value.strip():
        return "blank"
    return repr(value) if isinstance(value, str | int) and len(repr(value)) <= 40 else f"a {type(value).__name__}"


def _key(content: Content) -> bytes:
    turns = content if isinstance(content, str) else [turn for turn in content if turn["role"] != "system"]
    return hashlib.sha256(json.dumps(_spaced(turns), sort_keys=True).encode()).digest()


def _spaced(value: Any) -> Any:
    """`value` with every run of white space in its texts made one blank."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return [_spaced(one) for one in value]
    return {key: _spaced(one) for key, one in value.items()} if isinstance(value, dict) else value


def _shortened(problems: Sequence[Problem], name: str) -> list[Problem]:
    """The first problems of a file, and how many more there are."""
    more = len(problems) - SHOWN
    rest = [Problem("source-line", f"{more:,} more such lines", name)] if more > 0 else []
    return [*problems[:SHOWN], *rest]
