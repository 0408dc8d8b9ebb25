"""Who may see and change what, and the errors that the Hub gives to those who may not."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from .blobs import Blob
from .repos import Repo
from .wire import Call, Refused, Reply, failure

USER = "ckpt-tests"
STRANGER = "stranger"


@dataclass(frozen=True)
class Person:
    """Who a token stands for: the owner of every repository with a read or a write token, or someone else."""

    name: str
    role: str

    @property
    def owner(self) -> bool:
        return self.name == USER


@dataclass
class Hub:
    """All that the server knows. `url` and `cdn` are the two addresses it is reached at."""

    url: str = ""
    cdn: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    tokens: dict[str, Person] = field(default_factory=lambda: dict(_tokens()))
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    parts: dict[tuple[str, str], dict[int, Blob]] = field(default_factory=dict)  # of uploads not completed
    page: int = 1000
    part: int = 64 << 20
    relay: bool = False

    def person(self, call: Call) -> Person | None:
        """Who asks, None without a token.

        Raises:
            Refused: The token is not one of ours.
        """
        if call.token is None:
            return None
        if call.token not in self.tokens:
            raise Refused(failure(401, "Invalid credentials in Authorization header"))
        return self.tokens[call.token]

    def seen(self, call: Call, repo_id: str) -> Repo:
        """The repository, if it exists for the one who asks.

        Raises:
            Refused: 404 where it does not, 401 without a token, as the Hub does not tell one from the other.
        """
        person, repo = self.person(call), self.repos.get(repo_id)
        if repo is None or (repo.private and not (person and person.owner)):
            raise Refused(_no_repo(person))
        return repo

    def readable(self, call: Call, repo_id: str) -> Repo:
        """The repository, if its files may be read.

        Raises:
            Refused: As `seen`, and where it is gated and not open to the one who asks.
        """
        repo, person = self.seen(call, repo_id), self.person(call)
        if repo.gated and not (person and person.owner):
            raise Refused(_gated(repo_id, person, self.url))
        return repo

    def writable(self, call: Call, repo_id: str) -> Repo:
        """The repository, if it may be changed.

        Raises:
            Refused: As `seen`, and 403 where the token may only read.
        """
        repo = self.seen(call, repo_id)
        self.writer(call)
        return repo

    def writer(self, call: Call) -> Person:
        """Raises:
        Refused: The token may write nothing.
        """
        person = self.person(call)
        if person is None:
            raise Refused(failure(401, "Invalid username or password.", headers={"WWW-Authenticate": "Bearer"}))
        if person.role != "write":
            raise Refused(failure(403, "Forbidden: you must use a write token to change repositories"))
        return person


def valid_id(repo_id: str) -> bool:
    """Whether a repository may be called so."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]{0,95}", repo_id)) and "--" not in repo_id


def _tokens() -> Iterator[tuple[str, Person]]:
    people = [Person(USER, "write"), Person(USER, "read"), Person(STRANGER, "read")]
    return ((f"hf_{secrets.token_hex(17)}", person) for person in people)


def _no_repo(person: Person | None) -> Reply:
    # The Hub leaves the code out of a 401; its client then goes by the URL, but only where that is https.
    return failure(404 if person else 401, "Repository not found", "RepoNotFound")


def _gated(repo_id: str, person: Person | None, url: str) -> Reply:
    restricted = f"Access to model {repo_id} is restricted"
    if person is None:
        text = f"{restricted}. You must have access to it and be authenticated to access it. Please log in."
        return failure(401, text, "GatedRepo")
    text = f"{restricted} and you are not in the authorized list. Visit {url}/{repo_id} to ask for access."
    return failure(403, text, "GatedRepo")
