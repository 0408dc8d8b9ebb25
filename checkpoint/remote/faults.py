"""What goes wrong on the way to the Hub, in words that name the way out and never a token or a signed address."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from checkpoint.errors import Problem, UnreadableCheckpoint

LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may read it"
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""


def transport() -> ModuleType:
    """The HTTP client library that huggingface_hub uses; its name has changed with its releases."""
    from huggingface_hub.utils import get_session

    return sys.modules[type(get_session()).__module__.partition(".")[0]]


LONGEST_WAIT = 300.0
"""Seconds; no server is waited for longer, whatever it asks."""

_RESET = re.compile(r"\bt=(\d+)")


def wait_asked(headers: Mapping[str, str]) -> float | None:
    """Seconds that a busy server asks to wait; None where it does not say."""
    stated = headers.get("Retry-After", "")
    reset = _RESET.search(headers.get("RateLimit", ""))
    seconds = float(stated) if stated.isdecimal() else float(reset[1]) if reset else None
    return None if seconds is None else min(seconds, LONGEST_WAIT)


@contextmanager
def told(place: object) -> Iterator[None]:
    """Whatever huggingface_hub or its transport raise about `place` becomes UnreadableCheckpoint."""
    from huggingface_hub import errors

    known = (
        errors.HfHubHTTPError,
        errors.HFValidationError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        transport().HTTPError,
        transport().InvalidURL,
    )
    try:
        yield
    except known as error:
        raise UnreadableCheckpoint(problem_of(error, place)) from None


def problem_of(error: Exception, place: object) -> Problem:
    """What `error` means to the one who asked for `place`."""
    from huggingface_hub import errors

    status = status_of(error)
    text = str(place)
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        remedy = "Unset HF_HUB_OFFLINE, if it is set, or check the network"
        return Problem("hub-offline", "is not in the cache, and the Hub was not asked", text, remedy=remedy)
    if isinstance(error, errors.GatedRepoError):
        return Problem("hub-gated", "is gated", text, remedy=f"Ask for access on its page. {LOGIN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return Problem("hub-revision", "has no such revision", text, remedy="Name a branch, a tag or a commit")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return Problem("hub-repository", "is not there, or private and not open to this token", text, remedy=LOGIN)
    if isinstance(error, errors.EntryNotFoundError):
        return Problem("hub-file", "is not in the repository", text)
    if isinstance(error, errors.HFValidationError):
        return Problem("address-invalid", "is no name of a repository", text, expected="owner/name")
    if status == 403:
        return Problem("hub-forbidden", "may not be read with this token", text, remedy=LOGIN)
    if status == 429:
        return Problem("hub-busy", "the Hub answers 429, too many requests", text, remedy="Try again in a few minutes")
    if status is not None:
        return Problem("hub-failed", f"the Hub answers {status}", text, remedy="Try again later")
    return Problem(
        "hub-unreachable", f"cannot be reached ({_cause(error)})", text, remedy="Check HF_ENDPOINT and network"
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status that `error` carries, or that which caused it."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(getattr(seen, "response", None), "status_code", None)
        if status is not None:
            return int(status)
        seen = seen.__cause__
    return None


def _cause(error: BaseException) -> str:
    """The kind of the innermost error; its text may hold an address that was signed for us alone."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
