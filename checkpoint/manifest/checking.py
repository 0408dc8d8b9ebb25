"""Is a folder what its manifest says? Every file by size and hash; what is wrong with each is told at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import Problem, UnreadableCheckpoint, naming
from checkpoint.files import CHUNK, scratch, stays_inside
from checkpoint.folder import RECORDS
from checkpoint.header import TensorRef, read_header
from checkpoint.manifest.inputs import header_digest
from checkpoint.manifest.value import Manifest
from checkpoint.shelf import DEEPEST, SHARD_SUFFIX
from checkpoint.wholefile import is_part

Progress = Callable[[str, int], None]
"""Called with (file, bytes read of it)."""

UNLISTED = RECORDS | {".gitattributes", ".gitignore"}
"""Files that may stand beside what is listed: records of ours, and what git and the Hub add by themselves."""

RESTORE = "Copy or download it again, or write the checkpoint anew"

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """`problems` are all differences; `unknown` the files whose hash the manifest does not have, so that only their
    sizes were compared, and `unread` those that were not asked for."""

    problems: tuple[Problem, ...]
    files: int
    nbytes: int
    unknown: tuple[str, ...]
    unread: tuple[str, ...]


def differences(
    manifest: Manifest,
    root: Path,
    *,
    headers: bool = False,
    workers: int = 1,
    progress: Progress = lambda name, nbytes: None,
) -> Checked:
    """Hold the folder `root` against its manifest. With `headers`, of shards only sizes and headers.

    Raises UnreadableCheckpoint where a file cannot be read at all.
    """
    listed = {**manifest.files, **manifest.shards}
    present = set(_present(root))
    problems = [_missing(name) for name in listed if name not in present]
    problems += [_extra(name) for name in sorted(present - listed.keys() - UNLISTED)]
    files, shards = ([name for name in names if name in present] for names in (manifest.files, manifest.shards))
    with ThreadPoolExecutor(workers, "ckpt-check") as pool:
        try:
            found = list(pool.map(lambda name: _file(root, name, listed[name], progress), files))
            found += pool.map(lambda name: _shard(root, name, manifest, headers, progress), shards)
        except OSError as error:
            problem = Problem("file-unreadable", error.strerror or str(error), str(error.filename or root))
            raise UnreadableCheckpoint(problem) from error
    problems += (problem for one in found for problem in one)
    known = [name for name in (*files, *shards) if listed[name]["sha256"]]
    unread = tuple(name for name in shards if headers)
    return Checked(
        tuple(problems),
        len(files) + len(shards),
        sum(listed[name]["bytes"] for name in known if name not in unread),
        tuple(name for name in (*files, *shards) if not listed[name]["sha256"]),
        unread,
    )


def digest_of(path: Path, progress: Callable[[int], object], offset: int = 0, nbytes: int | None = None) -> str:
    """SHA-256 of `nbytes` bytes of a file at `offset`; of all of it by default."""
    digest, buffer = hashlib.sha256(), scratch(CHUNK)
    with naming(path), path.open("rb", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size - offset if nbytes is None else nbytes
        file.seek(offset)
        while left > 0 and (count := file.readinto(buffer[: min(left, CHUNK)])):
            digest.update(buffer[:count])
            left -= count
            progress(count)
    return digest.hexdigest()


def _present(root: Path) -> Iterator[str]:
    """Every file that is no tool's own, by relative name: those in hidden folders are left alone."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if len(Path(folder).parts) - len(root.parts) > DEEPEST:
            found = f"folders more than {DEEPEST} deep in one another"
            raise UnreadableCheckpoint(Problem("unsafe-name", found, Path(folder).relative_to(root).as_posix()))
        for name in files:
            path = Path(folder, name)
            if path.is_file() and not is_part(name):
                yield path.relative_to(root).as_posix()


def _missing(name: str) -> Problem:
    return Problem("file-missing", "is listed and not there", name, remedy=RESTORE)


def _extra(name: str) -> Problem:
    found = "is not listed"
    if "/" not in name and name.endswith(SHARD_SUFFIX):
        found += ", and some engines load every .safetensors file"
    return Problem("file-extra", found, name, remedy="Remove it, or write the checkpoint anew with it")


def _file(root: Path, name: str, entry: Entry, progress: Progress) -> list[Problem]:
    path = root / name
    problems = _unlike(root, name, entry)
    if problems or not entry["sha256"]:
        return problems
    found = digest_of(path, lambda nbytes: progress(name, nbytes))
    return [] if found == entry["sha256"] else [_changed(name, found, entry["sha256"])]


def _shard(root: Path, name: str, manifest: Manifest, headers: bool, progress: Progress) -> list[Problem]:
    entry = manifest.shards[name]
    problems = _unlike(root, name, entry)
    if problems:
        return problems
    try:
        header = read_header(root / name)
    except UnreadableCheckpoint as error:
        return list(error.problems)
    found = header_digest(root / name, header)
    same = entry["header"] in (None, found)
    if not same:
        problems.append(Problem("header-changed", f"its header has sha256 {found}", name, expected=entry["header"]))
    if headers or not entry["sha256"]:
        return problems
    digest = digest_of(root / name, lambda nbytes: progress(name, nbytes))
    if digest != entry["sha256"]:
        changed = list(_tensors(root / name, header.tensors.values(), manifest.rows(name)))
        problems += changed if changed else [_changed(name, digest, entry["sha256"])] if same else []
    return problems


def _unlike(root: Path, name: str, entry: Entry) -> list[Problem]:
    """What is wrong with a file before it is read."""
    path = root / name
    if not stays_inside(path, root):
        return [Problem("unsafe-name", "links to a file outside the folder", name)]
    nbytes = path.stat().st_size
    if nbytes == entry["bytes"]:
        return []
    return [Problem("size-changed", f"{nbytes:,} bytes", name, expected=f"{entry['bytes']:,}", remedy=RESTORE)]


def _tensors(path: Path, refs: Iterable[TensorRef], rows: Mapping[str, Any]) -> Iterator[Problem]:
    """The tensors whose bytes are not those that the manifest tells of."""
    for ref in refs:
        known = rows[ref.name][0] if ref.name in rows else None
        if known is None:
            continue
        found = digest_of(path, lambda nbytes: None, ref.offset, ref.nbytes)
        if found != known:
            yield _changed(path.name, found, known, ref.name)


def _changed(name: str, found: str, known: str, tensor: str | None = None) -> Problem:
    return Problem("content-changed", f"sha256 {found}", name, tensor, known, RESTORE)
