"""The one place that writes: a plan becomes a folder in a single streaming pass.

Untouched shards are linked. In a rewritten shard the header comes from the plan, unchanged tensors move as byte ranges
inside the kernel, and blocks of work are read, computed and written at their known places by a few threads, so memory
is bounded by blocks, never by shards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from checkpoint.draft import Computed, Draft, Stored, Work
from checkpoint.errors import CkptError, Problem, Refused, UnreadableCheckpoint, WriteFailed
from checkpoint.files import Files
from checkpoint.folder import CONFIG, INDEX, Checkpoint
from checkpoint.linking import can_share, clone_tree, copy, copy_range, share
from checkpoint.plan import Plan, ShardPlan, make_plan, works_of
from checkpoint.staging import publish_new, publish_over, refuse_occupied, staging_folder

Progress = Callable[[str, int], None]
"""Called with (shard, bytes written) as the work goes on."""

SLACK = 16 * 1024 * 1024
"""Bytes of disk kept free beyond what the plan needs, for folders and documents."""


def default_workers() -> int:
    return min(8, len(os.sched_getaffinity(0)))


def plan_for(draft: Draft, target: Path | None) -> Plan:
    """Plan `draft` for `target` (None: in place), linking where source and target share a file system."""
    if target is None:
        return make_plan(draft)
    home = next(folder for folder in (target.absolute(), *target.absolute().parents) if folder.is_dir())
    sources = (draft.origin.root / name for name in draft.origin.shards)
    return make_plan(draft, linkable=all(can_share(path, home) for path in sources))


def apply_plan(
    plan: Plan, target: Path | None, *, workers: int | None = None, progress: Progress = lambda shard, nbytes: None
) -> Path:
    """Write the plan to the new folder `target`, or in place of its origin (None). Returns the folder written.

    Raises Refused or WriteFailed, with source and target as they were.
    """
    root = plan.draft.origin.root
    in_place = target is None
    goal = (root if target is None else target).absolute()
    goal = goal.resolve() if in_place else goal.parent.resolve() / goal.name
    if not in_place:
        refuse_occupied(goal)
        _refuse_nested(root, goal)
    _refuse_full_disk(plan, goal)
    try:
        with staging_folder(goal) as staged:
            _write_shards(plan, staged, workers or default_workers(), progress)
            _write_documents(plan, staged)
            _place_side_files(plan, staged, link=in_place)
            if in_place:
                _carry_foreign(plan.draft.origin, staged)
                publish_over(staged, goal)
            else:
                publish_new(staged, goal)
    except OSError as error:
        found = error.strerror or str(error)
        raise WriteFailed(Problem("write-failed", found, str(error.filename or goal))) from error
    return goal


def _write_shards(plan: Plan, staged: Path, workers: int, progress: Progress) -> None:
    refusals: list[Problem] = []
    with Files() as files, ThreadPoolExecutor(workers, "ckpt") as pool:
        for shard in plan.shards:
            if shard.tensors:
                refusals += _write_shard(shard, staged / shard.name, files, pool, workers, progress)
            else:
                _move_whole(shard, staged / shard.name)
                progress(shard.name, shard.nbytes)
    if refusals:
        raise Refused(dict.fromkeys(refusals))


def _move_whole(shard: ShardPlan, path: Path) -> None:
    if shard.source is None:
        raise ValueError(f"{shard.name} has neither tensors nor a source")
    if shard.action == "linked":
        share(shard.source, path)
    else:
        copy(shard.source.resolve(), path)


def _write_shard(
    shard: ShardPlan, path: Path, files: Files, pool: ThreadPoolExecutor, workers: int, progress: Progress
) -> list[Problem]:
    """Write one shard; returns what its works refused, after all of them ran."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        os.truncate(handle, shard.nbytes)
        os.pwrite(handle, shard.header, 0)
        places = dict(_places(shard))
        for source, offset, position, nbytes in _ranges(shard, places):
            _copy_stored(source, offset, handle, position, nbytes)
            progress(shard.name, nbytes)
        refusals = _run_works(shard, places, handle, files, pool, workers, progress)
        os.fsync(handle)
    finally:
        os.close(handle)
    return refusals


def _places(shard: ShardPlan) -> Iterator[tuple[str, int]]:
    """(tensor, position in the file), in file order."""
    position = len(shard.header)
    for name, source in shard.tensors.items():
        yield name, position
        position += source.nbytes


def _ranges(shard: ShardPlan, places: dict[str, int]) -> Iterator[tuple[Path, int, int, int]]:
    """(source file, offset, position, bytes) of stored tensors, neighbours joined."""
    pending: tuple[Path, int, int, int] | None = None
    for name, source in shard.tensors.items():
        if not isinstance(source, Stored) or not source.nbytes:
            continue
        ref = source.ref
        if pending:
            path, offset, position, nbytes = pending
            if path == ref.path and offset + nbytes == ref.offset and position + nbytes == places[name]:
                pending = (path, offset, position, nbytes + ref.nbytes)
                continue
            yield pending
        pending = (ref.path, ref.offset, places[name], ref.nbytes)
    if pending:
        yield pending


def _copy_stored(path: Path, offset: int, target: int, position: int, nbytes: int) -> None:
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), str(path))) from error
    try:
        copy_range(source, offset, target, position, nbytes)
    finally:
        os.close(source)


def _run_works(
    shard: ShardPlan,
    places: dict[str, int],
    handle: int,
    files: Files,
    pool: ThreadPoolExecutor,
    workers: int,
    progress: Progress,
) -> list[Problem]:
    """Run all blocks with at most 2 per worker waiting, so that buffers stay few."""
    targets = _targets(shard, places)
    waiting: set[Future[int]] = set()
    refusals: list[Problem] = []

    def collect(done: Iterable[Future[int]]) -> None:
        for future in done:
            try:
                progress(shard.name, future.result())
            except Refused as refusal:
                refusals.extend(refusal.problems)

    try:
        for work in works_of(shard):
            for block in range(work.blocks):
                if len(waiting) >= 2 * workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    collect(done)
                waiting.add(pool.submit(_run_block, work, block, targets[id(work)], handle, files))
        collect(wait(waiting).done)
    except BaseException:
        for future in waiting:
            future.cancel()
        wait(waiting)
        raise
    return refusals


def _targets(shard: ShardPlan, places: dict[str, int]) -> dict[int, dict[str, int]]:
    """By work: output -> position in the file."""
    targets: dict[int, dict[str, int]] = {}
    for name, source in shard.tensors.items():
        if isinstance(source, Computed):
            targets.setdefault(id(source.work), {})[source.output] = places[name]
    return targets


def _run_block(work: Work, block: int, targets: dict[str, int], handle: int, files: Files) -> int:
    offset, nbytes = work.span(block)
    data = files.read(work.source.path, work.source.offset + offset, nbytes)
    written = 0
    for output, position, buffer in work.run(block, memoryview(data)):
        _write_all(handle, buffer, targets[output] + position)
        written += len(buffer)
    return written


def _write_all(handle: int, buffer: memoryview, position: int) -> None:
    done = 0
    while done < len(buffer):
        done += os.pwrite(handle, buffer[done:], position + done)


def _write_documents(plan: Plan, staged: Path) -> None:
    for name, document in ((INDEX, plan.index), (CONFIG, plan.config)):
        if document is not None:
            with (staged / name).open("x", encoding="utf-8", newline="") as file:
                file.write(document.text)
                file.flush()
                os.fsync(file.fileno())


def _place_side_files(plan: Plan, staged: Path, *, link: bool) -> None:
    """Side files are copied into a new folder, because people edit them; in place, the origin's own stay."""
    own = plan.draft.origin.side_files
    for name, source in plan.draft.side_files.items():
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if link and own.get(name) == source and not source.is_symlink():
            clone_tree(source, target)
        else:
            copy(source.resolve(), target)


def _carry_foreign(origin: Checkpoint, staged: Path) -> None:
    """What stands in the folder and is none of ours (`.git`, strays, folders) goes along under its name."""
    known = {INDEX, CONFIG, *origin.shards, *origin.side_files}
    for path in origin.root.iterdir():
        target = staged / path.name
        if path.name in known or target.exists():
            continue
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            _carry_rest(path, target, origin)
        else:
            clone_tree(path, target)


def _carry_rest(folder: Path, target: Path, origin: Checkpoint) -> None:
    """A visible folder holds side files, which are placed already; only what is none of them is left to carry."""
    for path in folder.rglob("*"):
        name = path.relative_to(origin.root).as_posix()
        if name not in origin.side_files and not path.is_dir():
            (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            clone_tree(path, target / path.relative_to(folder))


def _refuse_nested(root: Path, goal: Path) -> None:
    source = root.resolve()
    if goal.is_relative_to(source) or source.is_relative_to(goal):
        raise Refused(Problem("target-nested", f"lies inside {source}, or the reverse", str(goal)))


def _refuse_full_disk(plan: Plan, goal: Path) -> None:
    home = next(folder for folder in (goal, *goal.parents) if folder.is_dir())
    documents = sum(len(document.text) for document in (plan.index, plan.config) if document)
    side = sum(path.stat().st_size for path in plan.draft.side_files.values())
    needed = plan.bytes_written + documents + side + SLACK
    free = shutil.disk_usage(home).free
    if needed > free:
        raise Refused(Problem("disk-full", f"{free:,} bytes free", str(home), expected=f"at least {needed:,}"))


__all__ = ["CkptError", "Progress", "apply_plan", "default_workers", "plan_for"]
