"""Sending: large files first, a few at a time, then one commit that makes them all visible at once.

A large file is stored by its hash, so what arrived before an interruption is not sent again; it belongs to no
checkpoint until the commit. A reader sees the old checkpoint or the new one, never half of either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoint import Problem, Refused
from ckpt.hub.contents import Item, check_unchanged
from ckpt.hub.delivery import Delivery, is_same
from ckpt.hub.faults import HubFailed, failures, may_pass, problem_of, redacted, translated
from ckpt.hub.repository import find, hub

TOGETHER = 4
"""Large files under way at a time. Each group is whole on the Hub before the next begins."""

ATTEMPTS = 4


@dataclass(frozen=True)
class Sent:
    """The commit that an upload made; where there was nothing to send, the one that was there."""

    commit: str
    url: str
    made: bool = True


def send(delivery: Delivery, message: str, description: str, advance: Callable[[str, int], None]) -> Sent:
    """Make the delivery's one commit. Raises HubFailed, with the branch as it was; Refused where a file changed."""
    remote = delivery.remote
    if delivery.is_empty and remote.head:
        return Sent(remote.head, _url(remote.repo, remote.head), made=False)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations = []
    for group in _groups(delivery.sent):
        additions = [CommitOperationAdd(item.name, _content(item)) for item in group]
        _upload(delivery, group, additions)
        operations += additions
        for item in group:
            advance(item.name, item.size)
    check_unchanged(delivery.items)
    deletions = [CommitOperationDelete(name, is_folder=False) for name in delivery.deleted]
    return _commit(delivery, [*operations, *deletions], message, description)


def _content(item: Item) -> bytes | str:
    if item.content is not None:
        return item.content
    return str(item.path)


def _groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Shards and other large files by fours; all small files at once."""
    large = [item for item in items if item.content is None]
    for start in range(0, len(large), TOGETHER):
        yield large[start : start + TOGETHER]
    small = [item for item in items if item.content is not None]
    if small:
        yield small


def _upload(delivery: Delivery, group: Sequence[Item], additions: Sequence[Any]) -> None:
    """Bring the group's large files to the Hub's storage, and see that they were what was judged."""
    remote = delivery.remote
    with translated(str(remote), f"send {group[0].name}" + (" and others" if len(group) > 1 else "")):
        hub().preupload_lfs_files(
            remote.repo, additions, revision=remote.branch, num_threads=TOGETHER, free_memory=False
        )
    # huggingface_hub reads the files on its own: what it hashed is what it sent
    other = [i for i, one in zip(group, additions, strict=True) if one.upload_info.sha256.hex() != i.sha256]
    if other:
        remedy = "Run the command again"
        found = "changed while it was sent"
        raise Refused((Problem("file-changed", found, i.name, remedy=remedy) for i in other), "nothing was published")
    hidden = [one.path_in_repo for one in additions if getattr(one, "_should_ignore", False)]
    if hidden:
        remedy = "Remove the pattern from .gitignore in the repository, or the file"
        found = "the repository's .gitignore covers it, so the Hub would leave it out"
        raise Refused((Problem("hub-ignored", found, name, remedy=remedy) for name in hidden), "nothing was published")


def _commit(delivery: Delivery, operations: Sequence[Any], message: str, description: str) -> Sent:
    """Commit on top of the files that the delivery was decided by.

    The answer to a commit may be lost, and asking twice could make two. The parent is stated, so only one can succeed;
    whether it did is seen from what the branch holds.
    """
    remote, attempt = delivery.remote, 1
    while True:
        try:
            made = hub().create_commit(
                remote.repo,
                operations,
                commit_message=message,
                commit_description=description,
                revision=remote.branch,
                parent_commit=remote.head,
            )
            return Sent(str(made.oid), _url(remote.repo, str(made.oid)))
        except failures() as error:
            if landed := _landed(delivery):
                return landed
            if attempt == ATTEMPTS or not may_pass(error):
                raise HubFailed(problem_of(error, str(remote), "commit")) from None
        time.sleep(0.25 * 2**attempt)
        attempt += 1


def _landed(delivery: Delivery) -> Sent | None:
    """The commit, if it was made though its answer said or brought nothing of it."""
    remote = delivery.remote
    try:
        now = find(remote.repo, remote.branch)
    except HubFailed:
        return None
    if now.head is None or now.head == remote.head:
        return None
    is_ours = all(item.name in now.files and is_same(item, now.files[item.name]) for item in delivery.items)
    return (
        Sent(now.head, _url(remote.repo, now.head)) if is_ours and not set(delivery.deleted) & set(now.files) else None
    )


def _url(repo: str, commit: str) -> str:
    from huggingface_hub import constants

    return redacted(f"{constants.ENDPOINT}/{repo}/commit/{commit}")
