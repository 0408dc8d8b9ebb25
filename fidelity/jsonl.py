"""Files of one JSON object a line, read against a schema: every faulty line is told, not the first alone."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from checkpoint import Problem, Refused, UnreadableCheckpoint
from checkpoint.document import MAX_DEPTH, MAX_DOCUMENT, is_deeper, parse_json
from checkpoint.errors import MOST_PROBLEMS, bounded
from checkpoint.wholefile import read_whole

MOST_LINES = 100_000


def read_lines(path: Path, schema: str, code: str) -> list[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank. Refuses what is unreadable or against `schema`."""
    try:
        lines = BytesIO(read_whole(path, MAX_DOCUMENT))
    except OSError as error:
        raise Refused(Problem(f"{code}-unreadable", error.strerror or str(error), str(path))) from error
    found: list[tuple[int, dict[str, Any]]] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if len(problems) > MOST_PROBLEMS:
            break
        if len(found) == MOST_LINES:
            problems.append(Problem(f"{code}-invalid", f"more than {MOST_LINES:,} lines", str(path)))
            break
        if line.strip():
            record, wrong = _record(line, f"{path.name}, line {number}", schema, code)
            problems += wrong
            if record is not None:
                found.append((number, record))
    if not found and not problems:
        problems = [Problem(f"{code}-empty", "holds no line", str(path))]
    if problems:
        raise Refused(bounded(problems))
    return found


def repeated(ids: list[tuple[int, str]], path: Path, code: str) -> Iterator[Problem]:
    """A problem for each line whose id an earlier one has."""
    first: dict[str, int] = {}
    for number, name in ids:
        if name in first:
            yield Problem(
                f"{code}-invalid", f"id {name!r} again, as on line {first[name]}", f"{path.name}, line {number}"
            )
        first.setdefault(name, number)


def _record(line: bytes, place: str, schema: str, code: str) -> tuple[dict[str, Any] | None, list[Problem]]:
    from schemas import validate

    try:
        record = parse_json(line, place, f"{code}-invalid")
    except UnreadableCheckpoint as error:
        return None, list(error.problems)
    if is_deeper(record, MAX_DEPTH):
        return None, [Problem(f"{code}-invalid", f"nested more than {MAX_DEPTH} deep", place)]
    faults = validate(record, schema)
    if faults:
        return None, [Problem(f"{code}-invalid", fault.message, place, fault.path or None) for fault in faults]
    return record, []
