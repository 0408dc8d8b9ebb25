"""What can go wrong between a server and us, in words that quote nothing secret and nothing that drives a terminal."""

from __future__ import annotations

from typing import Any

from checkpoint.errors import CkptError, Problem

LONGEST_QUOTE = 400
"""Characters of a server's own text that a message repeats."""


class ServerFault(CkptError):
    """The server is not there, broke off, or answered what cannot be used."""

    headline = "the server cannot be used"


class Declined(ServerFault):
    """The server answered with an HTTP status that is no success."""

    headline = "the server declined"

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem)
        self.status = status


class Incapable(ServerFault):
    """The server works, but cannot do what is asked of it."""

    headline = "the server cannot do that"


def quoted(text: str, secret: str | None) -> str:
    """The beginning of a server's text, `secret` blotted out; it is escaped where the problem is shown."""
    text = " ".join(blotted(text, secret).split())
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def blotted(value: Any, secret: str | None) -> Any:
    """A JSON value with `secret` blotted out of all its texts."""
    if not secret:
        return value
    if isinstance(value, str):
        return value.replace(secret, "[the key]")
    if isinstance(value, list):
        return [blotted(part, secret) for part in value]
    if isinstance(value, dict):
        return {blotted(key, secret): blotted(part, secret) for key, part in value.items()}
    return value
