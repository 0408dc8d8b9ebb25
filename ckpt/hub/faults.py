"""What goes wrong while something is sent to the Hub, each in one line with its way out, and never a token in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

from checkpoint import CkptError, Problem, escape
from checkpoint.remote.faults import RETRIED, status_of, transport

LOGIN = "Log in with `hf auth login`, or set HF_TOKEN, with a token that may write to it"
AGAIN = "Run the same command again: what arrived is not sent again"
LONGEST = 300
"""Characters of the Hub's own words that are shown."""

MOVED = 412
"""The status of a commit whose parent is no longer the branch's newest commit."""

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
_USER = re.compile(r"(?<=//)[^/\s@]+@")
_QUERY = re.compile(r"\?[^\s'\"`]+")


class HubFailed(CkptError):
    """The Hub, or the way to it, failed. A commit is made whole or not at all, so its branch is as it was."""

    headline = "upload failed, the repository's files are as they were"


@contextmanager
def translated(place: str, doing: str) -> Iterator[None]:
    """Whatever huggingface_hub raises while `doing` something with `place` becomes HubFailed."""
    try:
        yield
    except failures() as error:
        raise HubFailed(problem_of(error, place, doing)) from None


def failures() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises.

    It wraps what fails in a thread in RuntimeError, and answers that it does not understand in ValueError.
    """
    from huggingface_hub.errors import HfHubHTTPError

    client = transport()
    return HfHubHTTPError, client.HTTPError, client.InvalidURL, OSError, RuntimeError, ValueError


def may_pass(error: BaseException) -> bool:
    """May the same request succeed later: is the Hub busy, or was there no answer?"""
    status = status_of(error)
    return status in RETRIED or (status is None and isinstance(error, transport().HTTPError))


def problem_of(error: BaseException, place: str, doing: str) -> Problem:
    """What `error` means to the one who wanted to do `doing` with `place`."""
    from huggingface_hub import errors

    status = status_of(error)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Problem("hub-offline", "HF_HUB_OFFLINE is set", place, remedy="Unset it")
    if isinstance(error, errors.HFValidationError):
        return Problem("repo-invalid", "is no name of a repository", place, expected="owner/name")
    if isinstance(error, errors.RevisionNotFoundError):
        return Problem("hub-revision", "has no such revision", place, expected="a branch")
    if status is None:
        return _without_answer(error, place, doing)
    if 400 <= status < 500 and _from_storage(error):
        found = f"cannot {doing}: the Hub's storage answers {status}{_said(error)}"
        return Problem("hub-storage", found, place, remedy=AGAIN)
    if status == 404 or isinstance(error, errors.GatedRepoError):
        return Problem("hub-repository", "is not there, or not open to this token", place, remedy=LOGIN)
    return _answered(status, error, place, doing)


def _answered(status: int, error: BaseException, place: str, doing: str) -> Problem:
    said = _said(error)
    if status == 401:
        found = "the Hub does not take this token (401)" if _tokens() else "the Hub asks for a token (401)"
        return Problem("hub-token", found, place, remedy=LOGIN)
    if status == 403:
        return Problem("hub-forbidden", f"this token may not {doing} (403){said}", place, remedy=LOGIN)
    if status == 409:
        return Problem(
            "hub-conflict", f"cannot {doing}: something else is changing it (409){said}", place, remedy=AGAIN
        )
    if status == MOVED:
        return Problem("hub-moved", "has a new commit since this upload began (412)", place, remedy=AGAIN)
    if status == 429:
        remedy = f"Wait a few minutes. {AGAIN}"
        return Problem("hub-busy", f"cannot {doing}: too many requests (429)", place, remedy=remedy)
    if status >= 500:
        remedy = f"Try later. {AGAIN}"
        return Problem("hub-failed", f"cannot {doing}: the Hub answers {status}, several times", place, remedy=remedy)
    remedy = f"Mend what it does not take. {AGAIN}"
    return Problem("hub-refused", f"cannot {doing}: the Hub answers {status}{said}", place, remedy=remedy)


def _without_answer(error: BaseException, place: str, doing: str) -> Problem:
    """Nobody answered, a local file could not be read, or huggingface_hub did not take an answer."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    inner = causes[-1]
    if any(isinstance(one, (transport().HTTPError, ConnectionError, TimeoutError)) for one in causes):
        found = f"cannot {doing}: cannot be reached ({type(inner).__name__})"
        return Problem("hub-unreachable", found, place, remedy=f"Check network and HF_ENDPOINT. {AGAIN}")
    if isinstance(inner, OSError) and inner.filename:
        return Problem("file-unreadable", inner.strerror or str(inner), str(inner.filename))
    return Problem("hub-refused", f"cannot {doing}: {_short(str(inner))}", place, remedy=AGAIN)


def _said(error: BaseException) -> str:
    """`: ` and what the server itself says, on one line; empty where it says nothing."""
    text = getattr(_answer(error), "server_message", None)
    return f": {_short(str(text))}" if text else ""


def _from_storage(error: BaseException) -> bool:
    """Did the storage behind the Hub answer, which takes signed addresses and no tokens?"""
    from huggingface_hub import constants

    response = getattr(_answer(error), "response", None)
    return response is not None and not str(response.url).startswith(constants.ENDPOINT)


def _answer(error: BaseException) -> BaseException | None:
    """The error, among those that led to this one, that has the server's answer."""
    seen: BaseException | None = error
    while seen is not None and getattr(seen, "response", None) is None:
        seen = seen.__cause__
    return seen


def _short(text: str) -> str:
    text = escape(redacted(" ".join(text.split())))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def redacted(text: str) -> str:
    """`text` without tokens, without users and passwords in addresses, and without what signs an address."""
    for token in _tokens():
        text = text.replace(token, "***")
    return _QUERY.sub("?***", _USER.sub("***@", _TOKEN.sub("***", text)))


def _tokens() -> set[str]:
    from huggingface_hub import get_token

    return {token for token in (get_token(), os.environ.get("HF_TOKEN")) if token}


def hush(*, bars: bool) -> None:
    """Let huggingface_hub log no addresses, some of which are signed for us alone; its progress shows with `bars`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, logging

    if not constants.HF_DEBUG:
        logging.set_verbosity(ERROR)
    if not bars:
        disable_progress_bars()
