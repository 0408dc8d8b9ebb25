"""A checkpoint on disk as a value: names, dtypes, shapes, byte ranges, documents and side files. Reads headers only.

`survey` takes a folder as it is and lists what contradicts itself; `open_checkpoint` refuses such a folder.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint.document import Document
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint, bounded, brief
from checkpoint.files import is_plain_name
from checkpoint.header import LONGEST_TENSOR_NAME, Header, TensorRef
from checkpoint.places import Address, Place, Root, place_of
from checkpoint.quantization import excess
from checkpoint.recovery import undo_interrupted
from checkpoint.shelf import SHARD_SUFFIX, Folder, Shelf

INDEX = "model.safetensors.index.json"
LONE = "model.safetensors"
CONFIG = "config.json"
MANIFEST = "ckpt.manifest.json"
SIGNATURE = "model.sig"
RECORDS = frozenset({MANIFEST, SIGNATURE, "ckpt.report.json"})
"""What this project says of one state of a folder: no part of the checkpoint, and untrue of what is made of it."""


TOLERATED = frozenset({"shard-unindexed", "total-size", "index-incomplete"})
"""Codes of problems that leave no doubt about what the checkpoint holds: whatever is written next mends them."""


@dataclass(frozen=True)
class Checkpoint:
    """A place that was surveyed. `tensors` is in the order of the index, or of the only file's bytes."""

    root: Root
    tensors: Mapping[str, TensorRef]
    shards: Mapping[str, Header]
    index: Document | None
    config_document: Document | None
    side_files: Mapping[str, Path]
    strays: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, or an empty mapping where there is none."""
        return self.config_document.value if self.config_document else {}

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self.tensors.values())

    @property
    def folder(self) -> Path:
        """The folder it lies in. Raises Refused for one on the Hub."""
        if isinstance(self.root, Path):
            return self.root
        found, remedy = "is on the Hub", f"Download it first: hf download {self.root.id}"
        raise Refused(Problem("remote", found, str(self.root), None, "a folder", remedy))

    def stray_header(self, name: str) -> Header:
        """The header of a shard that the index does not name. Raises UnreadableCheckpoint."""
        problems: list[Problem] = []
        headers = _shelf(self.root).headers([name], problems)
        if problems:
            raise UnreadableCheckpoint(problems)
        return headers[name]


def open_checkpoint(place: Place | str) -> Checkpoint:
    """Open a folder, or `hf://owner/name[@revision]`. Raises UnreadableCheckpoint with everything that contradicts
    itself in it."""
    checkpoint = survey(place)
    fatal = [problem for problem in checkpoint.problems if problem.code not in TOLERATED]
    if fatal:
        raise UnreadableCheckpoint(fatal, f"cannot read the checkpoint {place}")
    return checkpoint


def survey(place: Place | str, *, known: Checkpoint | None = None) -> Checkpoint:
    """Read the folder or the repository `place` as far as it can be read; what is wrong is in `problems`.

    Raises UnreadableCheckpoint only where there is no such place or no shard at all. What a killed run left half done
    in a folder is undone first. Shards that are the very files of `known` (device, inode, size, time) are not read
    again, nor is an index with its text. A repository is pinned to the commit that it is at.
    """
    place = place_of(place)
    root = _pinned(place) if isinstance(place, Address) else place
    try:
        if isinstance(root, Path):
            if not root.is_dir():
                raise UnreadableCheckpoint(Problem("no-folder", "is not a folder", str(root)))
            undo_interrupted(root)
        with without_collection():
            return _survey(_shelf(root, known), known)
    except OSError as error:
        found = error.strerror or str(error)
        raise UnreadableCheckpoint(Problem("file-unreadable", found, str(error.filename or root))) from error


def _pinned(address: Address) -> Root:
    """The repository at a commit; its snapshot in the cache where the Hub may not be asked."""
    from huggingface_hub import constants

    from checkpoint.remote.listing import cached_snapshot, find_repo

    return cached_snapshot(address) if constants.HF_HUB_OFFLINE else find_repo(address)


def _shelf(root: Root, known: Checkpoint | None = None) -> Shelf:
    if isinstance(root, Path):
        return Folder(root, known.shards if known else None)
    from checkpoint.remote.shelf import Repository

    return Repository(root)


def _survey(shelf: Shelf, known: Checkpoint | None) -> Checkpoint:
    problems: list[Problem] = []
    index = shelf.document(INDEX, problems, known.index if known else None)
    present = shelf.shards()
    listed = _listed(index, present, problems)
    if not listed and not problems:
        raise UnreadableCheckpoint(Problem("no-weights", f"holds no {SHARD_SUFFIX} file", str(shelf.root)))
    shards = shelf.headers(listed, problems)
    weight_map = _weight_map(index)
    placed = None if weight_map is None else _placed(weight_map, shards)
    tensors = _tensors(shards, weight_map, problems) if placed is None else placed
    members = set(listed)
    problems += _index_problems(index, shards, members, weight_map, agree=placed is not None)
    strays = tuple(name for name in present if name not in members)
    problems += [Problem("shard-unindexed", "not named in the index", name) for name in strays]
    config = _config(shelf, problems)
    side_files = shelf.side_files(RECORDS | {INDEX, CONFIG}, problems)
    return Checkpoint(shelf.root, tensors, shards, index, config, side_files, strays, tuple(problems))


@contextmanager
def without_collection() -> Iterator[None]:
    """For what builds a million small objects, none of them garbage: looking for some would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _config(shelf: Shelf, problems: list[Problem]) -> Document | None:
    """config.json; None where there is none that can be judged."""
    config = shelf.document(CONFIG, problems)
    excessive = list(excess(config.value, CONFIG)) if config else []
    problems += excessive
    return None if excessive else config


def _weight_map(index: Document | None) -> dict[str, str] | None:
    """The index's map, limited to the entries that can be followed; None without an index, or one that has none."""
    weight_map = index.value.get("weight_map") if index else None
    if not isinstance(weight_map, dict) or not weight_map:
        return None
    unsafe = _shard_names(weight_map)[1]
    return {name: file for name, file in weight_map.items() if name not in unsafe} if unsafe else weight_map


def _shard_names(weight_map: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    """The files that a weight_map names and that may be followed, and its entries that may not."""
    try:
        named = set(weight_map.values())
    except TypeError:  # a list or an object among them, for which None stands
        named = {file if isinstance(file, str) else None for file in weight_map.values()}
    files = {file for file in named if isinstance(file, str) and file.endswith(SHARD_SUFFIX) and is_plain_name(file)}
    if files == named and max(map(len, weight_map)) <= LONGEST_TENSOR_NAME:
        return files, {}
    unsafe = {
        name: file
        for name, file in weight_map.items()
        if not isinstance(file, str) or file not in files or len(name) > LONGEST_TENSOR_NAME
    }
    return files, unsafe


def _unsafe(name: str, file: Any) -> str:
    if len(name) > LONGEST_TENSOR_NAME:
        return f"a tensor's name of {len(name):,} characters"
    return f"file {brief(file)}"


def _listed(index: Document | None, present: list[str], problems: list[Problem]) -> list[str]:
    """The shard files that make the checkpoint, in order."""
    if index is None:
        if len(present) < 2 or problems:  # an index that cannot be read is a problem already
            return present
        if LONE not in present:
            remedy = f"Restore {INDEX} from the source of this checkpoint"
            problems.append(Problem("index-missing", f"{len(present)} shards and no index", INDEX, remedy=remedy))
            return present
        return [LONE]
    weight_map = index.value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problems.append(Problem("index-invalid", "no weight_map", INDEX, expected="a map of tensor to file name"))
        return present
    files, unsafe = _shard_names(weight_map)
    expected = f"the plain name of a {SHARD_SUFFIX} file in this folder"
    problems += bounded(
        Problem("unsafe-name", _unsafe(name, file), INDEX, name, expected) for name, file in unsafe.items()
    )
    if LONE in present and LONE not in files:
        remedy = f"Remove {LONE}, or {INDEX} and the shards it names"
        problems.append(
            Problem("lone-and-index", f"stands beside {INDEX}, which does not name it", LONE, remedy=remedy)
        )
    return sorted(files)


def _placed(weight_map: Mapping[str, str], shards: Mapping[str, Header]) -> dict[str, TensorRef] | None:
    """Every tensor, where the map says rightly of each in which shard it is; None where it does not.

    As many tensors as are stored, each found where it should be, leave none to be elsewhere or twice.
    """
    stored = {file: header.tensors for file, header in shards.items()}
    try:
        tensors = {name: stored[file][name] for name, file in weight_map.items()}
    except KeyError:
        return None
    return tensors if len(tensors) == sum(map(len, stored.values())) else None


def _tensors(
    shards: Mapping[str, Header], weight_map: Mapping[str, str] | None, problems: list[Problem]
) -> dict[str, TensorRef]:
    """Every tensor once, from the shard that the index names for it where there are several."""
    found: dict[str, TensorRef] = {}
    homes: dict[str, str] = {}
    for file, header in shards.items():
        for name, ref in header.tensors.items():
            if name in found:
                problems.append(Problem("tensor-twice", f"also in {homes[name]}", file, name))
                if weight_map is not None and weight_map.get(name) != file:
                    continue
            found[name], homes[name] = ref, file
    if weight_map is None:
        return found
    ordered = {name: found[name] for name in weight_map if name in found}
    return ordered | found


def _index_problems(
    index: Document | None,
    shards: Mapping[str, Header],
    listed: set[str],
    weight_map: Mapping[str, str] | None,
    *,
    agree: bool,
) -> Iterator[Problem]:
    """Where the index and the headers disagree; of the tensors' places it is known whether they `agree`."""
    if index is None or weight_map is None:
        return
    if not isinstance(index.value.get("metadata"), dict):
        yield Problem("index-incomplete", "no metadata", INDEX, expected="an object with total_size")
    if not agree:
        yield from _misplaced(weight_map, shards)
    metadata = index.value.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    stored = sum(ref.nbytes for header in shards.values() for ref in header.tensors.values())
    if total is not None and total != stored and len(shards) == len(listed):
        yield Problem("total-size", f"total_size {total}", INDEX, expected=f"{stored}")


def _misplaced(weight_map: Mapping[str, str], shards: Mapping[str, Header]) -> Iterator[Problem]:
    """Every tensor that is elsewhere than the map says."""
    for name, file in weight_map.items():
        if file in shards and name not in shards[file].tensors:
            yield Problem("tensor-absent", f"the index places it in {file}, which does not hold it", INDEX, name)
    for file, header in shards.items():
        for name in header.tensors:
            home = weight_map.get(name)
            if home != file:
                found = f"the index places it in {home}" if home else "not in the index, yet engines load it"
                yield Problem("tensor-unindexed", found, file, name)
