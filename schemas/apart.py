"""Judging by a schema that anybody may have written, in another process, which is stopped where it takes too long.

A schema can refer to itself without end, double its work with every level, or hold a regular expression that takes
for ever; all of that ends here in a refusal. Nothing is fetched: a reference leads into the schema, to one of ours, or
nowhere.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from checkpoint.errors import Problem, brief
from schemas.validation import BadSchema, SchemaFault, validate

SECONDS = 10
"""Of processor time."""

PATIENCE = 120
"""Seconds on the clock."""

MEMORY = 4 << 30
"""Bytes of address space."""

MOST_FAULTS = 1_000

_CODE = "import sys; sys.path[:] = {paths!r}; from schemas.apart import main; main()"

_patterns: list[str] = []
"""What is held against a text just now."""


class _TimeUp(BaseException):
    """The processor time is used up."""


def validate_apart(document: Any, schema: Mapping[str, Any]) -> list[SchemaFault]:
    """As `schemas.validate`, of faults at most the first MOST_FAULTS. Raises BadSchema where no end is to be seen."""
    asked = json.dumps({"document": document, "schema": schema}).encode()
    command = [sys.executable, "-P", "-c", _CODE.format(paths=sys.path)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=PATIENCE, check=False)
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise _endless("") from error
    if "problems" in answer:
        raise BadSchema(Problem(**problem) for problem in answer["problems"])
    return [SchemaFault(**fault) for fault in answer["faults"]]


def main() -> None:
    """Answer one question from stdin."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    asked = json.loads(sys.stdin.buffer.read())
    try:
        answer: dict[str, Any] = {"faults": [vars(one) for one in judged(asked["document"], asked["schema"])]}
    except BadSchema as error:
        answer = {"problems": [vars(problem) for problem in error.problems]}
    sys.stdout.write(json.dumps(answer))


def judged(document: Any, schema: Mapping[str, Any], seconds: float = SECONDS) -> list[SchemaFault]:
    """The faults, within `seconds`. Raises BadSchema. For the main thread, whose signals it takes."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    _patterns.clear()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        return validate(document, schema, keywords=NOTING)[:MOST_FAULTS]
    except (_TimeUp, MemoryError, RecursionError) as error:
        raise _endless(_patterns[-1] if _patterns else "") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _endless(pattern: str) -> BadSchema:
    where = f" at the pattern {brief(pattern)}" if pattern else ""
    remedy = "Look for a $ref that leads back to itself, and for repeats of repeats in patterns, as in (a+)+"
    return BadSchema(Problem("schema-endless", f"judging by it comes to no end{where}", remedy=remedy))


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _TimeUp


def _noting(keyword: str) -> Callable[..., Iterator[Any]]:
    """jsonschema's own `keyword`, which says while it is at work what it matches."""

    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import Draft202012Validator

        _patterns.append(str(value if isinstance(value, str) else next(iter(value), "")))
        yield from Draft202012Validator.VALIDATORS[keyword](validator, value, instance, schema) or ()
        _patterns.pop()

    return judge


NOTING = {keyword: _noting(keyword) for keyword in ("pattern", "patternProperties")}
