"""Hashes that no run has computed, because it did not read the bytes: taken once, when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoint.errors import Problem, Refused, UnreadableCheckpoint
from checkpoint.files import stays_inside
from checkpoint.folder import RECORDS
from checkpoint.header import read_header
from checkpoint.manifest.checking import differences, digest_of
from checkpoint.manifest.inputs import header_digest
from checkpoint.manifest.value import Manifest
from checkpoint.shelf import SHARD_SUFFIX

Progress = Callable[[str, int], None]


def completed(
    manifest: Manifest, root: Path, *, workers: int = 1, progress: Progress = lambda name, nbytes: None
) -> Manifest:
    """`manifest` with every hash that it lacks, of files and of the tensors that it lists.

    Raises UnreadableCheckpoint where the folder differs from it in files, sizes, headers or any hash of a small file:
    it would say of other bytes that they are these.
    """
    checked = differences(manifest, root, headers=True)
    if checked.problems:
        raise UnreadableCheckpoint(checked.problems, "the folder is not what its manifest says")
    files = {name: dict(entry) for name, entry in manifest.files.items()}
    shards = {name: dict(entry) for name, entry in manifest.shards.items()}
    lacking = [name for name in {**files, **shards} if _lacks(files.get(name) or shards[name])]

    def complete(name: str) -> dict[str, Any]:
        if name in files:
            return {**files[name], "sha256": digest_of(root / name, lambda nbytes: progress(name, nbytes))}
        return _shard(root / name, shards[name], lambda nbytes: progress(name, nbytes))

    with ThreadPoolExecutor(workers, "ckpt-hash") as pool:
        for name, entry in zip(lacking, pool.map(complete, lacking), strict=True):
            (files if name in files else shards)[name] = entry
    return replace(manifest, document={**manifest.document, "files": files, "shards": shards})


def with_edited(manifest: Manifest, root: Path, names: Iterable[str]) -> Manifest:
    """`manifest` with the side files `names` as they are now. Raises Refused for what is a shard or is not there."""
    problems = []
    for name in names:
        path = root / name
        if name in manifest.shards or name.endswith(SHARD_SUFFIX):
            remedy = "Write the checkpoint anew: its index may no longer agree"
            problems.append(Problem("shard-edited", "is a shard, no side file", name, remedy=remedy))
        elif not path.is_file() or not stays_inside(path, root) or name in RECORDS:
            problems.append(Problem("file-missing", "is no side file of the folder", name))
        else:
            manifest = manifest.with_file(path.relative_to(root).as_posix(), path.read_bytes())
    if problems:
        raise Refused(problems)
    return manifest


def lacking_bytes(manifest: Manifest) -> int:
    """Bytes of the files that `completed` would read."""
    entries = [*manifest.files.values(), *manifest.shards.values()]
    return sum(entry["bytes"] for entry in entries if _lacks(entry))


def _lacks(entry: Mapping[str, Any]) -> bool:
    return entry["sha256"] is None or any(row[0] is None for row in entry.get("tensors", {}).values())


def _shard(path: Path, entry: Mapping[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    header = read_header(path)
    done: dict[str, Any] = {**entry, "header": header_digest(path, header)}
    done["sha256"] = entry["sha256"] or digest_of(path, progress)
    if rows := entry.get("tensors"):
        refs = header.tensors
        done["tensors"] = {
            name: [known or digest_of(path, lambda nbytes: None, refs[name].offset, refs[name].nbytes), origin]
            for name, (known, origin) in rows.items()
        }
    return done
