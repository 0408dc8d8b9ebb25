"""The checkpoints that a plan takes bytes from, each as an entry of the manifest, with the history that it brings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint.document import Document
from checkpoint.draft import Computed, Draft
from checkpoint.errors import UnreadableCheckpoint
from checkpoint.folder import Checkpoint
from checkpoint.header import Header, TensorRef
from checkpoint.manifest.value import Manifest, read_manifest
from checkpoint.manifest.whence import folder_name, whence
from checkpoint.places import File, RemoteFile


@dataclass(frozen=True)
class Input:
    """`entry` is what the manifest says of it; `history` its own manifest, `manifest` whether that could be read.

    `fitting` are those of its shards which that manifest describes, as far as sizes and headers tell.
    """

    role: str
    entry: Mapping[str, Any]
    files: Mapping[File, str]
    tensors: Mapping[str, Mapping[str, TensorRef]]
    checkpoint: Checkpoint | None = None
    history: Manifest | None = None
    fitting: frozenset[str] = frozenset()

    def rows_of(self, file: str) -> Mapping[str, Any]:
        """What its manifest tells of the tensors of a shard; empty where that is not known to be about this file."""
        return self.history.rows(file) if self.history and file in self.fitting else {}

    def origin_of(self, file: str) -> int | None:
        """Where it had a whole shard from, by the numbers of its manifest; None as above."""
        if self.history is None or file not in self.fitting:
            return None
        number: int | None = self.history.shards[file]["origin"]
        return number


@dataclass(frozen=True)
class Inputs:
    """All inputs in order; `of_file` tells for each stored file the number of its input and its name there."""

    all: tuple[Input, ...]
    of_file: Mapping[File, tuple[int, str]] = field(repr=False)

    def number(self, checkpoint: Checkpoint) -> int:
        """Raises ValueError for one that is not among them."""
        return [one.checkpoint.root if one.checkpoint else None for one in self.all].index(checkpoint.root)


def inputs_of(draft: Draft) -> Inputs:
    """The origin first, then what operations name, then folders that tensors come from though nobody named them."""
    roots = [draft.origin.root]
    found = [_described("source", draft.origin)]
    for step in draft.steps:
        for role, checkpoint in step.sources.items():
            if checkpoint.root not in roots:
                roots.append(checkpoint.root)
                found.append(_described(role, checkpoint))
    of_file = {file: (number, name) for number, one in enumerate(found) for file, name in one.files.items()}
    for folder, files in _strange(draft, of_file).items():
        number = len(found)
        found.append(_unnamed(folder, files))
        of_file |= {file: (number, name) for file, name in files.items()}
    return Inputs(tuple(found), of_file)


def _described(role: str, checkpoint: Checkpoint) -> Input:
    """Reads headers once more, and nothing behind them."""
    try:
        history, told = read_manifest(checkpoint.root), "read"
    except UnreadableCheckpoint as error:
        if any(problem.code.startswith(("hub-", "file-unreadable")) for problem in error.problems):
            raise  # it may well be sound: a history must not be lost because a disk failed
        history, told = None, "invalid"
    known = whence(checkpoint.root, checkpoint.shards)
    shards: dict[str, dict[str, Any]] = {}
    fitting = set()
    for name, header in checkpoint.shards.items():
        shards[name] = _shard(checkpoint, name, header)
        if history and _fits(history, name, shards[name]):
            fitting.add(name)
            shards[name]["sha256"] = history.shards[name]["sha256"]
        shards[name]["sha256"] = shards[name]["sha256"] or known.sha256.get(name)
    entry = {
        "role": role,
        "place": known.place,
        "revision": known.revision,
        "config": _digest(checkpoint.config_document),
        "index": _digest(checkpoint.index),
        "manifest": told if history or told == "invalid" else None,
        "run": None,
        "shards": shards,
    }
    files = {file: name for name, header in checkpoint.shards.items() for file in _names(checkpoint, name, header)}
    tensors = {name: header.tensors for name, header in checkpoint.shards.items()}
    return Input(role, entry, files, tensors, checkpoint, history, frozenset(fitting))


def _shard(checkpoint: Checkpoint, name: str, header: Header) -> dict[str, Any]:
    nbytes = header.nbytes + sum(ref.nbytes for ref in header.tensors.values())
    file = checkpoint.root / name
    return {"bytes": nbytes, "sha256": None, "header": header_digest(file, header) if isinstance(file, Path) else None}


def header_digest(path: Path, header: Header) -> str:
    """SHA-256 of the bytes before the data."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(header.nbytes)).hexdigest()


def _fits(history: Manifest, name: str, shard: Mapping[str, Any]) -> bool:
    """Is the shard the one that the manifest describes, as far as can be told without reading it?"""
    told = history.shards.get(name)
    if told is None or told["bytes"] != shard["bytes"]:
        return False
    return None in (told["header"], shard["header"]) or told["header"] == shard["header"]


def _digest(document: Document | None) -> str | None:
    return hashlib.sha256(document.text.encode()).hexdigest() if document else None


def _names(checkpoint: Checkpoint, name: str, header: Header) -> Iterator[File]:
    """What the shard `name` is called in tensors and in plans."""
    yield checkpoint.root / name
    for ref in header.tensors.values():
        yield ref.path
        return


def _strange(draft: Draft, known: Mapping[File, tuple[int, str]]) -> dict[str, dict[File, str]]:
    """Files by folder that tensors come from and that belong to no input."""
    if draft.tensors is draft.origin.tensors:
        return {}
    sources = [source.work.source if isinstance(source, Computed) else source for source in draft.tensors.values()]
    found: dict[str, dict[File, str]] = {}
    for path in {id(source.path): source.path for source in sources}.values():  # few objects, thousands of tensors
        if path not in known:
            place = f"hf://{path.repo}" if isinstance(path, RemoteFile) else folder_name(path.parent)
            found.setdefault(place, {})[path] = path.name
    return found


def _unnamed(place: str, files: Mapping[File, str]) -> Input:
    shards = {
        name: {
            "bytes": file.size if isinstance(file, RemoteFile) else file.stat().st_size,
            "sha256": None,
            "header": None,
        }
        for file, name in files.items()
    }
    rest = dict.fromkeys(("revision", "config", "index", "manifest", "run"))
    return Input("from", {"role": "from", "place": place, **rest, "shards": shards}, files, {})
