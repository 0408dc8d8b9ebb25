"""Bytes that are known to be equal without being read: of one file under two names, or of one hash.

Hashes are those that the Hub states of its files, and those of manifests (`ckpt.manifest.json`) that describe the files
beside them: same size, same header, not written since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from checkpoint import Checkpoint, RemoteFile, TensorRef, UnreadableCheckpoint
from checkpoint.folder import MANIFEST
from checkpoint.manifest import Manifest, read_manifest
from checkpoint.manifest.inputs import header_digest
from checkpoint.manifest.whence import whence
from compare.pairing import Pair

Reason = Literal["file", "hash"]


class Identity(NamedTuple):
    """What is known of a shard: which file it is, and its SHA-256 (or git's name of it), None for what is not known."""

    file: tuple[int, int] | RemoteFile | None
    sha256: str | None
    blob: str | None = None


@dataclass(frozen=True)
class Known:
    """Of one checkpoint: its shards by name, and the hashes of single tensors by shard and name."""

    shards: Mapping[str, Identity]
    tensors: Mapping[str, Mapping[str, str]] = field(repr=False)


def known_of(checkpoint: Checkpoint, *, hashes: bool = True) -> Known:
    """What files tell of themselves; with `hashes`, what was written down of them, too."""
    manifest = _manifest(checkpoint) if hashes else None
    stated = whence(checkpoint.root, checkpoint.shards).sha256 if hashes else {}
    shards: dict[str, Identity] = {}
    tensors: dict[str, dict[str, str]] = {}
    for name, header in checkpoint.shards.items():
        file = checkpoint.root / name
        told = manifest.shards[name] if manifest and _describes(manifest, checkpoint, name) else None
        sha256 = (told["sha256"] if told else None) or stated.get(name)
        if isinstance(file, RemoteFile):
            shards[name] = Identity(file, sha256, file.blob if hashes else None)
        else:
            shards[name] = Identity(header.stamp[:2] if header.stamp else None, sha256)
        if told and manifest:
            tensors[name] = {tensor: row[0] for tensor, row in manifest.rows(name).items() if row[0]}
    return Known(shards, tensors)


def has_hashes(checkpoint: Checkpoint) -> bool:
    """Is there anything that tells hashes, which those of another checkpoint could be held against?"""
    root = checkpoint.root
    return not isinstance(root, Path) or (root / MANIFEST).is_file() or bool(whence(root, checkpoint.shards).sha256)


def _manifest(checkpoint: Checkpoint) -> Manifest | None:
    """The manifest, None where there is none that can be read: then more is read, and no result is another."""
    try:
        return read_manifest(checkpoint.root)
    except UnreadableCheckpoint:
        return None


def _describes(manifest: Manifest, checkpoint: Checkpoint, name: str) -> bool:
    """Is the shard the one that the manifest tells of, as far as can be told without reading it?"""
    told, header = manifest.shards.get(name), checkpoint.shards[name]
    nbytes = header.nbytes + sum(ref.nbytes for ref in header.tensors.values())
    if told is None or told["bytes"] != nbytes:
        return False
    file = checkpoint.root / name
    if isinstance(file, RemoteFile) or not isinstance(checkpoint.root, Path):
        return file.sha256 is not None and file.sha256 == told["sha256"] if isinstance(file, RemoteFile) else False
    try:
        if header.stamp is None or header.stamp[3] > (checkpoint.root / MANIFEST).stat().st_mtime_ns:
            return False
        return told["header"] in (None, header_digest(file, header))
    except OSError:
        return False


def reason(pair: Pair, a: Known, b: Known) -> Reason | None:
    """Why the bytes of a pair are known to be equal; None where they are to be read."""
    if not pair.is_same_form:
        return None
    reasons = {_reason(ref, pair.b.parts[part], a, b) for part, ref in pair.a.parts.items()}
    return None if None in reasons else "hash" if "hash" in reasons else "file"


def _reason(ours: TensorRef, theirs: TensorRef, a: Known, b: Known) -> Reason | None:
    one, other = a.shards[ours.path.name], b.shards[theirs.path.name]
    if ours.offset == theirs.offset:
        if one.file is not None and one.file == other.file:
            return "file"
        if _is_one(one.sha256, other.sha256) or _is_one(one.blob, other.blob):
            return "hash"
    hashes = (known.tensors.get(ref.path.name, {}).get(ref.name) for known, ref in ((a, ours), (b, theirs)))
    return "hash" if _is_one(*hashes) else None


def _is_one(one: str | None, other: str | None) -> bool:
    return one is not None and one == other


def share(pairs: Iterable[tuple[Pair, Reason]]) -> dict[Reason, int]:
    """Bytes on both sides that need not be read, by reason."""
    found: dict[Reason, int] = {"file": 0, "hash": 0}
    for pair, why in pairs:
        found[why] += pair.nbytes
    return found
