"""From a draft to work that can be shown before it is done: what happens to each shard, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from checkpoint import dtypes
from checkpoint.document import Document
from checkpoint.draft import Computed, Draft, Source, Work
from checkpoint.errors import Problem, Refused
from checkpoint.files import CHUNK
from checkpoint.folder import LONE
from checkpoint.header import MAX_HEADER, TensorRef, encode_header
from checkpoint.places import File, RemoteFile
from checkpoint.shelf import SHARD_SUFFIX

Action = Literal["linked", "copied", "rewritten", "new"]
READERS = 8
"""Range requests under way to the Hub, of each kind, at most: an answer takes its time, however little is asked for."""

HASHING = 1024 * 1024
"""Bytes of buffers in which all shards that are written side by side are hashed."""

NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)\.safetensors")


@dataclass(frozen=True)
class ShardPlan:
    """One file to be. `was` is its name in the origin; `tensors` is in file order, empty where the file moves whole."""

    name: str
    was: str | None
    action: Action
    source: File | None
    tensors: Mapping[str, Source]
    header: bytes
    nbytes: int
    bytes_read: int

    @property
    def sources(self) -> Iterator[File]:
        """The files that are read for it, as often as they are."""
        if not self.tensors and self.source is not None:
            yield self.source
        for tensor in self.tensors.values():
            yield (tensor if isinstance(tensor, TensorRef) else tensor.work.source).path

    @property
    def piecemeal(self) -> Mapping[RemoteFile, int]:
        """As `remote`, but for a file that moves whole."""
        return self.remote if self.tensors else {}

    @cached_property
    def remote(self) -> Mapping[RemoteFile, int]:
        """The bytes that it takes from each file of the Hub."""
        if not self.tensors:
            return {self.source: self.nbytes} if isinstance(self.source, RemoteFile) else {}
        needed: dict[RemoteFile, int] = {}
        for path, nbytes in _reads(self.tensors.values()):
            if isinstance(path, RemoteFile):
                needed[path] = needed.get(path, 0) + nbytes
        return needed


@dataclass(frozen=True)
class Plan:
    """All that `apply_plan` will do. Bytes read and written are those of shards; side files and documents are apart.

    `names` is the final name of each shard that the draft names.
    """

    draft: Draft
    shards: tuple[ShardPlan, ...]
    names: Mapping[str, str]
    removed: tuple[str, ...]
    appearing: tuple[str, ...]
    disappearing: tuple[str, ...]

    @cached_property
    def index(self) -> Document | None:
        """The index to write; None where there is none. Editing it takes time: `apply_plan` does so beside copying."""
        return _index(self.draft, self.names)

    @property
    def config(self) -> Document | None:
        """config.json to write; None where there was none and nothing was said."""
        return self.draft.config if self.draft.config.value or self.draft.origin.config_document else None

    @property
    def bytes_read(self) -> int:
        return sum(shard.bytes_read for shard in self.shards)

    @property
    def bytes_written(self) -> int:
        return sum(shard.nbytes for shard in self.shards if shard.action != "linked")

    @cached_property
    def remote(self) -> Mapping[RemoteFile, int]:
        """The bytes that are read of each file of the Hub."""
        needed: dict[RemoteFile, int] = {}
        for shard in self.shards:
            for file, nbytes in shard.remote.items():
                needed[file] = needed.get(file, 0) + nbytes
        return needed

    def threads(self, workers: int, memory: int) -> int:
        """How many blocks may run at once: `workers`, or as many as fit into `memory` bytes. Raises Refused."""
        return threads_for(self.works(), workers, memory)

    def memory(self, threads: int) -> int:
        """Bytes of buffers at the peak, interpreter and libraries apart."""
        block = max((work.block_memory for work in self.works()), default=0)
        fetched = (threads + 2 * READERS) * CHUNK if self.remote else 0
        header = max((len(shard.header) for shard in self.shards), default=0)
        return max(threads * block, CHUNK) + header + HASHING + fetched

    def works(self) -> Iterable[Work]:
        """Every piece of work once."""
        for shard in self.shards:
            yield from works_of(shard)


def threads_for(works: Iterable[Work], workers: int, memory: int) -> int:
    """How many blocks of `works` may run at once: `workers`, or as many as fit into `memory` bytes.

    Raises Refused where not even one fits.
    """
    largest = max(works, key=lambda work: work.block_memory, default=None)
    if largest is None:
        return workers
    if largest.block_memory > memory:
        found, expected = f"a memory budget of {memory:,} bytes", f"at least {largest.block_memory:,} for a block"
        raise Refused(Problem("memory-small", found, None, largest.source.name, expected, "Raise --memory"))
    return min(workers, memory // max(1, largest.block_memory))


def works_of(shard: ShardPlan) -> Iterable[Work]:
    """The distinct works whose outputs `shard` holds."""
    seen = {id(source.work): source.work for source in shard.tensors.values() if isinstance(source, Computed)}
    return seen.values()


def make_plan(draft: Draft, *, linkable: bool = True) -> Plan:
    """Plan `draft`; `linkable` says whether files of the origin can share storage with the target.

    Raises Refused with every problem that the draft's operations recorded.
    """
    problems = draft.problems or () if draft.tensors else (*draft.problems, Problem("no-tensors", "nothing is left"))
    if problems:
        raise Refused(problems)
    members = _members(draft)
    names = shard_names(list(members), list(draft.origin.shards))
    shards = tuple(_shard(draft, label, names[label], members[label], linkable) for label in names)
    _check(shards, draft)
    written = {*names.values()}
    before, after = draft.origin.tensors.keys(), draft.tensors.keys()
    return Plan(
        draft=draft,
        shards=shards,
        names=names,
        removed=tuple(label for label in draft.origin.shards if label not in written),
        appearing=tuple(name for name in after if name not in before),
        disappearing=tuple(name for name in before if name not in after),
    )


def _members(draft: Draft) -> dict[str, Mapping[str, Source]]:
    """What each shard shall hold, by label."""
    if draft.tensors is draft.origin.tensors:
        return {label: header.tensors for label, header in draft.origin.shards.items()}
    members: dict[str, dict[str, Source]] = {}
    for name, label in draft.shards_of(draft.tensors).items():
        members.setdefault(label, {})[name] = draft.tensors[name]
    return dict(members)


def shard_names(labels: list[str], origin: list[str]) -> dict[str, str]:
    """Final file names. Names stay, except that a lone file among others is numbered, since transformers prefers a lone
    `model.safetensors` to the index, and that a numbered row which lost a shard is numbered again."""
    wanted, known = set(labels), set(origin)
    kept = [label for label in origin if label in wanted] + [label for label in labels if label not in known]
    rows: dict[str, list[str]] = {}
    if LONE in kept and len(kept) > 1:
        rows["model"] = [LONE]
    for label in kept:
        if match := NUMBERED.fullmatch(label):
            rows.setdefault(match["stem"], []).append(label)
    lost = {match["stem"] for label in origin if label not in wanted and (match := NUMBERED.fullmatch(label))}
    moved = {
        label: f"{stem}-{number:05d}-of-{len(row):05d}{SHARD_SUFFIX}"
        for stem, row in rows.items()
        if stem in lost or LONE in row
        for number, label in enumerate(row, 1)
    }
    return {label: moved.get(label, label) for label in kept}


def _shard(draft: Draft, label: str, name: str, members: Mapping[str, Source], linkable: bool) -> ShardPlan:
    header = draft.origin.shards.get(label)
    source = draft.origin.root / label if header else None
    if header is not None and members == header.tensors:
        size = header.nbytes + sum(ref.nbytes for ref in header.tensors.values())
        moves: Action = "linked" if linkable and not isinstance(source, RemoteFile) else "copied"
        return ShardPlan(name, label, moves, source, {}, b"", size, 0 if moves == "linked" else size)
    ordered = dict(sorted(members.items(), key=lambda item: (-dtypes.itemsize(item[1].dtype), item[0])))
    metadata = {"format": "pt", **((header.metadata if header else None) or {})}
    encoded = encode_header(((n, s.dtype, s.shape, s.nbytes) for n, s in ordered.items()), metadata)
    return ShardPlan(
        name=name,
        was=label if header else None,
        action="rewritten" if header else "new",
        source=source,
        tensors=ordered,
        header=encoded,
        nbytes=len(encoded) + sum(tensor.nbytes for tensor in ordered.values()),
        bytes_read=sum(nbytes for _, nbytes in _reads(ordered.values())),
    )


def _reads(sources: Collection[Source]) -> Iterator[tuple[File, int]]:
    """Bytes that are copied, and bytes that works ask for, each work once however many outputs it has."""
    works = {id(source.work): source.work for source in sources if isinstance(source, Computed)}
    for source in sources:
        if isinstance(source, TensorRef):
            yield source.path, source.nbytes
    for work in works.values():
        yield work.source.path, sum(work.span(block)[1] for block in range(work.blocks))


def _check(shards: Iterable[ShardPlan], draft: Draft) -> None:
    """Raise Refused where a shard cannot be written as planned."""
    problems = []
    for shard in shards:
        if len(shard.header) - 8 > MAX_HEADER:
            found, expected = f"header of {len(shard.header):,} bytes", f"at most {MAX_HEADER:,}"
            problems.append(Problem("header-too-large", found, shard.name, expected=expected))
        if shard.name in draft.origin.strays:
            remedy = "Move away the file of that name, which the index does not list"
            problems.append(Problem("name-taken", "would take the place of another file", shard.name, remedy=remedy))
    if problems:
        raise Refused(problems)


def _index(draft: Draft, names: Mapping[str, str]) -> Document | None:
    """The index of the new set: the origin's text, edited; a new one where there was none and one is needed.

    A new index is sorted by tensor, as the Hub's tools write it; a sorted one stays sorted, others keep their order.
    """
    origin = draft.origin.index
    if origin is None and len(names) == 1 and (LONE in names or names.keys() <= draft.origin.shards.keys()):
        return None
    old = list(origin.value.get("weight_map", ())) if origin else []
    order: Iterable[str] = sorted(draft.tensors) if old == sorted(old) else draft.tensors
    shards = draft.shards_of(order)
    weight_map = {name: names[label] for name, label in shards.items()}
    total = sum(source.nbytes for source in draft.tensors.values())
    if origin is None:
        return Document.of({"metadata": {"total_size": total}, "weight_map": weight_map})
    metadata = origin.value.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    if metadata.get("total_size") != total:
        metadata["total_size"] = total
    if "total_parameters" in metadata and _shapes(draft.tensors) != _shapes(draft.origin.tensors):
        del metadata["total_parameters"]  # it counted what the checkpoint held before
    value = {**origin.value, "metadata": metadata, "weight_map": weight_map}
    return origin if value == origin.value else origin.with_value(value)


def _shapes(tensors: Mapping[str, Source] | Mapping[str, TensorRef]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}
