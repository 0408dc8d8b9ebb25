"""A repository of the Hub as an upload finds it: is it there, who may see it, and which files its branch holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint.remote.listing import patiently
from ckpt.hub.faults import translated

MAIN = "main"
AGENT = "ckpt-surgery"


@dataclass(frozen=True)
class Entry:
    """A file on the Hub. `sha256` is known of what is stored as a large file, `blob` (git's name) of all."""

    size: int
    sha256: str | None
    blob: str


@dataclass(frozen=True)
class Remote:
    """A repository at the newest commit of `branch`: `head`, None where it or its branch is not there yet."""

    repo: str
    branch: str
    head: str | None = None
    private: bool | None = None
    files: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.private is not None

    def __str__(self) -> str:
        return f"hf://{self.repo}" + (f"@{self.branch}" if self.branch != MAIN else "")


def hub() -> Any:
    """huggingface_hub's client, with the token that it finds itself."""
    from huggingface_hub import HfApi

    return HfApi(library_name=AGENT)


def find(repo: str, branch: str) -> Remote:
    """The repository as it is now. Raises HubFailed."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    absent = Remote(repo, branch)
    with translated(str(absent), "look at it"):
        try:
            info = patiently(lambda: hub().model_info(repo))
        except GatedRepoError:
            raise
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:
                raise
            return absent
        try:
            head = str(patiently(lambda: hub().model_info(repo, revision=branch)).sha)
        except RevisionNotFoundError:
            return Remote(repo, branch, None, bool(info.private))
    return Remote(repo, branch, head, bool(info.private), files_at(repo, head))


def files_at(repo: str, commit: str) -> dict[str, Entry]:
    """Every file at `commit`, by name. Raises HubFailed."""
    with translated(f"hf://{repo}@{commit}", "list its files"):
        tree = patiently(lambda: list(hub().list_repo_tree(repo, recursive=True, revision=commit)))
    return {
        one.path: Entry(one.lfs.size if one.lfs else one.size, one.lfs.sha256 if one.lfs else None, one.blob_id)
        for one in tree
        if hasattr(one, "blob_id")
    }


def ready(remote: Remote, *, private: bool) -> Remote:
    """The repository and its branch, made where they are not there yet. An existing one's visibility stays.

    Raises HubFailed.
    """
    if not remote.exists:
        _create(remote, private)
        remote = find(remote.repo, remote.branch)
    if remote.head is None:
        with translated(str(remote), "create the branch"):
            patiently(lambda: hub().create_branch(remote.repo, branch=remote.branch, exist_ok=True))
        remote = find(remote.repo, remote.branch)
    return remote


def _create(remote: Remote, private: bool) -> None:
    """Make the repository. That it is there already is no fault: the answer to an earlier try may have been lost."""
    with translated(str(remote), f"create a repository for {remote.repo.partition('/')[0]}"):
        patiently(lambda: hub().create_repo(remote.repo, private=private, exist_ok=True))
