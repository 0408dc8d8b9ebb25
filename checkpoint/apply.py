"""The one place that writes: a plan becomes a folder.

Untouched shards are linked, the others streamed; documents and side files follow, and the folder is published whole.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint.digest import Digest
from checkpoint.document import Document
from checkpoint.draft import Draft
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint, WriteFailed, naming
from checkpoint.files import CHUNK, Files
from checkpoint.folder import CONFIG, INDEX, RECORDS, Checkpoint
from checkpoint.header import stamp
from checkpoint.journal import fingerprint
from checkpoint.linking import can_share, copy, copy_identity, keep, share
from checkpoint.manifest.making import account_of, place_manifest
from checkpoint.manifest.provenance import Provenance
from checkpoint.places import Repo
from checkpoint.plan import READERS, Plan, make_plan, threads_for
from checkpoint.recovery import spool_path, sweep
from checkpoint.shelf import DEEPEST
from checkpoint.staging import publish_new, publish_over, refuse_occupied, staging_folder
from checkpoint.streaming import Progress, Streaming
from checkpoint.wholefile import is_part

if TYPE_CHECKING:
    from checkpoint.remote.spool import Spool

SLACK = 16 * 1024 * 1024
"""Bytes of disk kept free beyond what the plan needs, for folders and documents."""

FULL = {errno.ENOSPC, errno.EDQUOT}

INDEX_LINE = 256
"""Bytes of the index for a tensor beside its name, at most."""

LARGE = 64 * 1024 * 1024
"""Bytes from which a side file (weights in another format, mostly) is shared as shards are, since nobody edits it."""


@dataclass(frozen=True)
class Written:
    """The folder that was written, and by name the hashes of each shard that was not linked."""

    root: Path
    digests: Mapping[str, Digest]

    @property
    def sha256(self) -> dict[str, str]:
        """Of each shard that was not linked, as hexadecimal digits; "" where hashes were not asked for."""
        return {name: digest.sha256 for name, digest in self.digests.items()}


def default_workers() -> int:
    """The cores that this process may use, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def default_memory() -> int:
    """A quarter of the machine's memory in bytes, at most 1 GiB."""
    return min(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def plan_for(draft: Draft, target: Path | None) -> Plan:
    """Plan `draft` for `target` (None: in place), linking where source and target share a file system."""
    root = draft.origin.root
    if target is None:
        if isinstance(root, Repo):
            found, remedy = "is on the Hub and is not changed in place", "Write to a folder with --out, then upload it"
            raise Refused(Problem("remote-in-place", found, str(root), remedy=remedy))
        return make_plan(draft)
    try:
        home = _nearest_folder(target.absolute())
        files = (root / name for name in draft.origin.shards)
        linkable = all(can_share(path, home) for path in files if isinstance(path, Path))
    except OSError as error:
        problem = Problem("file-unreadable", error.strerror or str(error), str(error.filename or target))
        raise UnreadableCheckpoint(problem) from error
    return make_plan(draft, linkable=linkable)


def apply_plan(
    plan: Plan,
    target: Path | None,
    *,
    workers: int | None = None,
    memory: int | None = None,
    hashing: bool = True,
    cache: int = 0,
    progress: Progress = lambda shard, nbytes: None,
    provenance: Provenance | None = None,
) -> Written:
    """Write the plan to the new folder `target`, or in place of its origin (None).

    At most `workers` threads compute, and no more than `memory` bytes of buffers allow. `hashing` costs a core about
    1.5 s a gigabyte, beside the rest. Shards of the Hub are downloaded whole, and their hashes checked, while they fit
    into `cache` bytes of disk; what does not fit is read by range. `provenance` is for the manifest, which every folder
    gets. Raises Refused or WriteFailed, with source and target as they were; UnreadableCheckpoint where a source fails:
    what was finished by then is kept beside the target for the next run of the same plan, if it may succeed.
    """
    threads = plan.threads(workers or default_workers(), memory or default_memory())
    goal, in_place = _goal(plan, target), target is None
    try:
        if in_place:
            _refuse_mounted(goal)
        else:
            _refuse_unfit(plan, goal)
        _refuse_full_disk(plan, goal, in_place=in_place, cache=cache)
        with Files() as files, staging_folder(goal, fingerprint(plan, hashing=hashing)) as (staged, journal):
            _refuse_changed(plan.draft, in_place=in_place)
            spool = _spool(plan, goal, cache, files)
            streaming = Streaming(
                files,
                threads,
                progress,
                hashing=hashing,
                readers=_readers(memory or default_memory()),
                journal=journal,
                spool=spool,
            )
            with ThreadPoolExecutor(1, "ckpt-index") as aside:
                index = aside.submit(lambda: plan.index)
                account = aside.submit(account_of, plan, provenance)
                digests = _write_shards(plan, staged, streaming, in_place)
                index.result()
            _refuse_changed(plan.draft, in_place=in_place)
            _place_documents(plan, staged, in_place=in_place)
            _place_side_files(plan, staged, in_place=in_place)
            place_manifest(account.result(), digests, staged, in_place=in_place)
            if in_place:
                _carry(goal, goal, staged, _own(plan.draft.origin))
                publish_over(staged, goal)
            else:
                publish_new(staged, goal)
    except OSError as error:
        raise WriteFailed(_failure(error, goal)) from error
    return Written(goal, digests)


def examine(
    draft: Draft,
    *,
    workers: int | None = None,
    memory: int | None = None,
    progress: Progress = lambda shard, nbytes: None,
) -> list[Problem]:
    """What a refused draft's weights would have been refused for as well: its undone work is run and nothing written.

    For a run that fails anyway, so that what is wrong with the weights is told together with the rest.
    """
    threads = threads_for(draft.unrun, workers or default_workers(), memory or default_memory())
    with Files() as files:
        streaming = Streaming(files, threads, progress)
        streaming.examine(draft.unrun)
    return list(dict.fromkeys(streaming.refusals))


def _goal(plan: Plan, target: Path | None) -> Path:
    """The folder to write, links followed up to its name; those of its own too where it is replaced."""
    if target is not None:
        target = target.absolute()
        return target.parent.resolve() / target.name
    return plan.draft.origin.folder.resolve()


def _readers(memory: int) -> int:
    """Range requests under way side by side: what they bring waits in memory, a quarter of it at most."""
    return max(1, min(READERS, memory // (8 * CHUNK)))


def _spool(plan: Plan, goal: Path, budget: int, files: Files) -> Spool | None:
    """Where shards of the Hub are downloaded to, within the budget."""
    if not budget or not plan.remote:
        return None
    from checkpoint.remote.spool import Spool

    uses = Counter(file for shard in plan.shards for file in shard.piecemeal)
    return Spool(spool_path(goal), budget, files, uses)


def _write_shards(plan: Plan, staged: Path, streaming: Streaming, in_place: bool) -> dict[str, Digest]:
    """Hashes by name of the shards that were written; the others have a second name now."""
    moved = keep if in_place else share
    for shard in plan.shards:
        if shard.action == "linked" and isinstance(shard.source, Path):
            moved(shard.source, staged / shard.name)
    digests = streaming.write((shard for shard in plan.shards if shard.action != "linked"), staged)
    if streaming.refusals:
        raise Refused(dict.fromkeys(streaming.refusals))
    return digests


def _place_documents(plan: Plan, staged: Path, *, in_place: bool) -> None:
    origin = plan.draft.origin
    for name, document, old in (
        (INDEX, plan.index, origin.index),
        (CONFIG, plan.config, origin.config_document),
    ):
        if document is not None and in_place and old is not None and document.text == old.text:
            keep(origin.folder / name, staged / name)
        elif document is not None:
            _write_document(document, staged / name)


def _write_document(document: Document, path: Path) -> None:
    with naming(path), path.open("x", encoding="utf-8", newline="") as file:
        file.write(document.text)
        file.flush()
        os.fsync(file.fileno())


def _place_side_files(plan: Plan, staged: Path, *, in_place: bool) -> None:
    """Side files are copied into a new folder, because people edit them; in place, the origin's own stay."""
    own = plan.draft.origin.side_files
    for name, source in plan.draft.side_files.items():
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if in_place and own.get(name) == source:
            keep(source, target)
        elif _is_shared(source, staged):
            share(source, target)
        else:
            copy(source.resolve(), target)


def _is_shared(side_file: Path, folder: Path) -> bool:
    return side_file.stat().st_size >= LARGE and can_share(side_file, folder)


def _own(origin: Checkpoint) -> frozenset[str]:
    """Relative names of what a plan decides on; everything else in the folder is foreign and stays."""
    return RECORDS | {INDEX, CONFIG, *origin.shards, *origin.side_files}


def _carry(folder: Path, root: Path, staged: Path, own: frozenset[str]) -> None:
    """What stands in `folder` and is none of ours (`.git`, strays, folders) goes along under its name."""
    for path in folder.iterdir():
        name = path.relative_to(root).as_posix()
        target = staged / name
        if path.is_dir() and not path.is_symlink():
            if len(path.parts) - len(root.parts) > DEEPEST:
                raise Refused(
                    Problem("unsafe-name", f"folders more than {DEEPEST} deep in one another", str(root), name)
                )
            target.mkdir(exist_ok=True)
            _carry(path, root, staged, own)
            copy_identity(path, target)
        elif name not in own and not is_part(path.name) and not os.path.lexists(target):
            keep(path, target)


def _refuse_unfit(plan: Plan, goal: Path) -> None:
    """Raise Refused where `goal` is occupied, or lies inside a folder that is read from, or the reverse."""
    sweep(goal)
    refuse_occupied(goal)
    around = {_identity(folder) for folder in (goal, *goal.parents) if folder.exists()}
    for source in _source_folders(plan):
        if _identity(source) in around or source.is_relative_to(goal):
            raise Refused(Problem("target-nested", f"lies inside {source}, or the reverse", str(goal)))


def _source_folders(plan: Plan) -> Iterator[Path]:
    """The origin and every other folder that tensors come from."""
    paths = {source for shard in plan.shards for source in shard.sources}
    folders = {plan.draft.origin.root, *(path.parent for path in paths if isinstance(path, Path))}
    return (folder.resolve() for folder in folders if isinstance(folder, Path))


def _identity(folder: Path) -> tuple[int, int]:
    """What stays the same under another name: a bind mount, or another case where the file system folds it."""
    known = folder.stat()
    return known.st_dev, known.st_ino


def _refuse_mounted(goal: Path) -> None:
    if goal.stat().st_dev != goal.parent.stat().st_dev or os.fsencode(goal) in _mount_points():
        found = "is a mount point, so no other folder can take its place"
        raise Refused(Problem("target-mounted", found, str(goal), remedy="Write to a new folder with --out"))


def _failure(error: OSError, goal: Path) -> Problem:
    """What a failed call was about; where the disk is full, how full it is."""
    found, file = error.strerror or str(error), str(error.filename2 or error.filename or goal)
    if error.errno not in FULL:
        return Problem("write-failed", found, file)
    room = os.statvfs(_nearest_folder(goal))
    free = f"{room.f_bavail * room.f_frsize:,} bytes and {room.f_favail:,} files"
    remedy = "Nothing that was written is kept: make room and run the command again"
    return Problem("disk-full", f"{found}; room for {free} again", file, remedy=remedy)


def _mount_points() -> Iterator[bytes]:
    """Where something is mounted, also what lies on the same device; nothing where the system does not say so."""
    table = Path("/proc/self/mountinfo")
    for line in table.read_bytes().splitlines() if table.exists() else ():
        yield re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), line.split()[4])


def _refuse_changed(draft: Draft, *, in_place: bool) -> None:
    """Raise Refused where a file is no longer the one that the plan was made from."""
    origin = draft.origin
    checkpoints = (origin, *(other for step in draft.steps for other in step.sources.values()))
    changed = [
        name if checkpoint is origin else str(path)
        for checkpoint in {id(one): one for one in checkpoints}.values()
        for name, header in checkpoint.shards.items()
        if header.stamp and isinstance(path := checkpoint.root / name, Path) and header.stamp != stamp(path.stat())
    ]
    if in_place:
        documents = ((INDEX, origin.index), (CONFIG, origin.config_document))
        texts = ((name, _text(origin.folder / name), document and document.text) for name, document in documents)
        changed += [name for name, text, known in texts if text != known]
    if changed:
        remedy = "Run the command again"
        raise Refused(Problem("source-changed", "changed since it was read", name, remedy=remedy) for name in changed)


def _text(path: Path) -> str | None:
    return path.read_bytes().decode(errors="replace") if path.is_file() else None


def _refuse_full_disk(plan: Plan, goal: Path, *, in_place: bool, cache: int) -> None:
    home = _nearest_folder(goal)
    own = plan.draft.origin.side_files if in_place else {}
    copied = [path for name, path in plan.draft.side_files.items() if own.get(name) != path]
    needed = plan.bytes_written + SLACK + min(cache, sum(file.size for file in plan.remote))
    needed += sum(map(len, plan.draft.tensors)) + INDEX_LINE * len(plan.draft.tensors)
    needed += sum(path.stat().st_size for path in copied if not _is_shared(path, home))
    free = shutil.disk_usage(home).free
    if needed > free:
        raise Refused(Problem("disk-full", f"{free:,} bytes free", str(home), expected=f"at least {needed:,}"))


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
