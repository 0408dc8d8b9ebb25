"""What a repository holds, asked for once and pinned to the commit that the answer names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.files import LONGEST_NAME
from checkpoint.places import Address, RemoteFile, Repo
from checkpoint.remote.faults import RETRIED, status_of, told, transport, wait_asked

ATTEMPTS = 4
FIRST_WAIT = 0.25
"""Seconds; doubled with each attempt."""

T = TypeVar("T")


def find_repo(address: Address) -> Repo:
    """The repository at the commit that `address` means now. Raises UnreadableCheckpoint."""
    from huggingface_hub import HfApi, constants

    with told(address):
        info = patiently(
            lambda: HfApi(library_name="ckpt-surgery").model_info(
                address.repo,
                revision=address.revision,
                files_metadata=True,
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            )
        )
    commit = str(info.sha)
    files = {file.name: file for file in _files(info.siblings or (), address.repo, commit)}
    cached = {name: path for name, file in files.items() if (path := _cached(file))}
    return Repo(address.repo, commit, address.revision, files, cached)


def cached_snapshot(address: Address) -> Path:
    """The folder of the Hub cache that holds the repository, without asking the Hub. Raises UnreadableCheckpoint."""
    from huggingface_hub import snapshot_download

    with told(address):
        return Path(snapshot_download(address.repo, revision=address.revision, local_files_only=True))


def patiently(ask: Callable[[], T]) -> T:
    """The answer of `ask`, which is asked again where the Hub is busy or the connection fails."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    client = transport()
    for attempt in range(1, ATTEMPTS):
        wait = FIRST_WAIT * 2**attempt
        try:
            return ask()
        except (client.TimeoutException, client.NetworkError, client.RemoteProtocolError, LocalEntryNotFoundError):
            pass  # the last: a download that had no answer, and looked for the file in the cache instead
        except client.HTTPError as error:
            if status_of(error) not in RETRIED:
                raise
            wait = wait_asked(error.response.headers) or wait
        time.sleep(wait)
    return ask()


def _files(siblings: Iterable[Any], repo: str, commit: str) -> Iterable[RemoteFile]:
    """Raises UnreadableCheckpoint for names that no file of a folder may have: they come from another machine."""
    names = [str(sibling.rfilename) for sibling in siblings]
    unsafe = [name for name in names if not _is_safe(name)]
    if unsafe:
        place = f"hf://{repo}@{commit}"
        raise UnreadableCheckpoint(Problem("unsafe-name", f"holds a file {name!r}", place) for name in unsafe)
    for name, sibling in zip(names, siblings, strict=True):
        sha256 = str(sibling.lfs.sha256) if sibling.lfs else None
        size = sibling.lfs.size if sibling.lfs else sibling.size
        yield RemoteFile(repo, commit, name, int(size or 0), sha256, sibling.blob_id)


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return name.isprintable() and all(
        part not in ("", ".", "..") and "\\" not in part and len(part.encode()) <= LONGEST_NAME for part in parts
    )


def _cached(file: RemoteFile) -> Path | None:
    """Where the Hub cache has the file; None where it has not, or in another size."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(file.repo, file.name, revision=file.commit)
    return Path(path) if isinstance(path, str) and Path(path).stat().st_size == file.size else None
