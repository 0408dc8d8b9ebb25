"""The checkpoint that a repository will hold after an upload: what is sent, beside the files that stay on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from checkpoint import Checkpoint
from checkpoint.places import RemoteFile
from checkpoint.side_files import RemoteSideFiles
from ckpt.hub.contents import Published
from ckpt.hub.delivery import Delivery


class Becoming(Mapping[str, Path]):
    """Side files of this machine, and those of the Hub, which are downloaded when they are asked for."""

    def __init__(self, ours: Mapping[str, Path], theirs: RemoteSideFiles) -> None:
        self._ours, self._theirs = ours, theirs

    def __getitem__(self, name: str) -> Path:
        return self._ours[name] if name in self._ours else self._theirs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._theirs

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._ours, *self._theirs}))

    def __len__(self) -> int:
        return len({*self._ours, *self._theirs})


def becoming(published: Published, planned: Delivery) -> Checkpoint:
    """`published` without what is not sent, and with what the Hub keeps."""
    checkpoint, remote = published.checkpoint, planned.remote
    unsent = set(published.unsent)
    ours = {name: path for name, path in checkpoint.side_files.items() if name not in unsent}
    kept = {
        name: RemoteFile(remote.repo, str(remote.head), name, entry.size, entry.sha256, entry.blob)
        for name, entry in remote.files.items()
        if name in planned.kept
    }
    problems = tuple(problem for problem in checkpoint.problems if problem.file not in unsent)
    side_files = Becoming(ours, RemoteSideFiles(kept))
    return replace(checkpoint, side_files=side_files, strays=(), problems=problems)
