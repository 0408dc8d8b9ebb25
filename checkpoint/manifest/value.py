"""The manifest as a value: its document, what may be added to it, and how it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from checkpoint.document import read_document
from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.files import stays_inside
from checkpoint.folder import MANIFEST, without_collection
from checkpoint.manifest.text import manifest_text
from checkpoint.manifest.validity import faults_of
from checkpoint.places import RemoteFile, Root

VERSION = 1

MAX_MANIFEST = 256 * 1024 * 1024
"""Bytes; one of 93,000 tensors has 15 million."""

Rows = Mapping[str, Any]
"""Tensors of a shard by name: [SHA-256 or None, number of its origin]."""


class Waived(Protocol):
    """A finding that was let pass, or the waiver that let it pass."""

    @property
    def rule(self) -> str:
        """The id of the rule."""

    @property
    def place(self) -> str | None:
        """Where; None: wherever it was found."""

    @property
    def reason(self) -> str:
        """Why."""


@dataclass(frozen=True)
class Manifest:
    """`document` is as `schemas/manifest.schema.json` describes it, its numbers within their lists."""

    document: Mapping[str, Any]

    @property
    def shards(self) -> Mapping[str, Mapping[str, Any]]:
        """Each shard by name: bytes, sha256, header, action, origin, tensors."""
        shards: Mapping[str, Mapping[str, Any]] = self.document["shards"]
        return shards

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """Each other file by name: bytes, sha256, from, edited."""
        files: Mapping[str, Mapping[str, Any]] = self.document["files"]
        return files

    @property
    def run(self) -> Mapping[str, Any]:
        """The run that wrote the folder, the last of those known."""
        run: Mapping[str, Any] = self.document["runs"][-1]
        return run

    def rows(self, shard: str) -> Rows:
        """What is known of the tensors of a shard; empty where it was linked and its source had no manifest."""
        rows: Rows = self.shards[shard].get("tensors", {})
        return rows

    def with_file(self, name: str, content: bytes) -> Manifest:
        """The manifest after the side file `name` became `content`, by hand or by a tool."""
        before = self.files.get(name, {"from": None})
        entry = {**_hashed(content), "from": before["from"], "edited": True}
        return self._with(files=dict(sorted({**self.files, name: entry}.items())))

    def with_waivers(self, waivers: Iterable[Waived]) -> Manifest:
        """The manifest saying what was let pass, where, and why."""
        said = [{"rule": one.rule, "place": one.place, "reason": one.reason} for one in waivers]
        return self._with(waivers=said)

    def with_verdict(
        self, *, level: str, counts: Mapping[str, int], engines: Iterable[str] = (), base: str | None = None
    ) -> Manifest:
        """The manifest saying what `verify` found: findings by severity, at which level and for which engines.

        `base` is what it was judged beside, as `hf://owner/name@commit` or a folder's name.
        """
        verdict = {"tool": tool(), "level": level, "engines": list(engines), "base": base, "counts": dict(counts)}
        return self._with(verdict=verdict)

    def completed(self, root: Path) -> Manifest:
        """The manifest with the hashes that nobody has computed yet, taken of the files of `root`.

        Raises UnreadableCheckpoint where a file is not the one that the manifest describes, as far as that is known.
        """
        from checkpoint.manifest.completing import completed

        return completed(self, root)

    @property
    def text(self) -> str:
        return manifest_text(self.document)

    def write(self, root: Path) -> None:
        """Put it in place of the one in `root`, in one step. Raises WriteFailed."""
        from checkpoint.wholefile import write_whole

        write_whole(self.text.encode(), root / MANIFEST, "manifest-unwritable")

    def _with(self, **members: Any) -> Manifest:
        return Manifest({**self.document, **members})


def read_manifest(root: Root) -> Manifest | None:
    """The manifest of a folder or a repository; None where it has none.

    Raises UnreadableCheckpoint with all that is wrong with it.
    """
    path = _path(root)
    if path is None:
        return None
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), MANIFEST)) from error
    if size > MAX_MANIFEST:
        raise UnreadableCheckpoint(Problem("manifest-invalid", f"over {MAX_MANIFEST:,} bytes", MANIFEST))
    with without_collection():
        document = read_document(path).value
        faults = faults_of(document)
    if faults:
        raise UnreadableCheckpoint(faults, f"cannot take {MANIFEST} for one")
    return Manifest(document)


def tool() -> dict[str, str | None]:
    """This project and its version; None where it is run from its sources, uninstalled."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"name": "ckpt-surgery", "version": version("ckpt-surgery")}
    except PackageNotFoundError:
        return {"name": "ckpt-surgery", "version": None}


def _path(root: Root) -> Path | None:
    """The file on this machine, downloaded first where it is on the Hub."""
    if not isinstance(root, Path):
        if MANIFEST not in root.files or root.files[MANIFEST].size > MAX_MANIFEST:
            return None
        from checkpoint.remote.downloading import downloaded

        file = root / MANIFEST
        return downloaded(file) if isinstance(file, RemoteFile) else file
    path = root / MANIFEST
    if not path.is_file():
        return None
    if not stays_inside(path, root):
        raise UnreadableCheckpoint(Problem("unsafe-name", "not a regular file inside the folder", MANIFEST))
    return path


def _hashed(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
