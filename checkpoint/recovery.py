"""What a run leaves beside its target while it works, and how the next run undoes what a killed one began.

Beside `model` stand `.model.ckpt-lock` (held as long as a run lives), `.model.ckpt-new` (the folder to be) and, only
where files have to be replaced one by one, `.model.ckpt-undo`: the files replaced, and a record of what to undo. As
SQLite does with a hot journal, whoever opens a folder that has such a record puts the old files back first.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpoint.document import parse_json
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint

_CANNOT_LOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_CANNOT_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def staging_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-new"


def undo_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-undo"


@dataclass(frozen=True)
class Undo:
    """How `target` becomes what it was: `replaced` files are kept in `folder`; `added` files and `folders` go."""

    target: Path
    replaced: tuple[str, ...]
    added: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return undo_path(self.target)

    def kept(self, name: str) -> Path:
        """Where the old file `name` is kept."""
        return self.folder / "files" / name

    @property
    def record(self) -> Path:
        """The file whose presence says that replacing has begun and has not come to its end."""
        return self.folder / "record.json"

    def begin(self) -> None:
        """Write the record, whole or not at all."""
        draft = self.record.with_suffix(".draft")
        with draft.open("x") as file:
            json.dump({key: value for key, value in asdict(self).items() if key != "target"}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_tree(self.folder)
        sync_folder(self.folder.parent)
        os.rename(draft, self.record)
        sync_folder(self.folder)

    def end(self) -> None:
        """From here on the new files stand."""
        self.record.unlink(missing_ok=True)
        sync_folder(self.folder)

    def run(self) -> None:
        """Put everything back. What was put back already stays, so that a second run of this does no harm."""
        for name in self.replaced:
            with suppress(FileNotFoundError):
                os.replace(self.kept(name), self.target / name)
        for name in self.added:
            (self.target / name).unlink(missing_ok=True)
        for name in reversed(self.folders):
            with suppress(FileNotFoundError):
                (self.target / name).rmdir()
        sync_tree(self.target)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Be the only run that writes `target`. Raises Refused where another one is."""
    path = target.parent / f".{target.name}.ckpt-lock"
    handle = _acquire(path, target)
    try:
        yield
    finally:
        with suppress(OSError):  # a lock file that nobody holds stops nobody
            path.unlink()
        os.close(handle)


def clear_leftovers(target: Path) -> None:
    """Undo what a killed run began and remove what it left. Only for the holder of the lock."""
    undo_leftover(target)
    for folder in (undo_path(target), staging_path(target)):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)


def discard(target: Path) -> None:
    """Remove what stands beside `target`, save the old files of a step that could be neither ended nor undone.

    What cannot be removed now is removed by the next run; the target is right whatever becomes of it.
    """
    shutil.rmtree(staging_path(target), ignore_errors=True)
    if not (undo_path(target) / "record.json").exists():
        shutil.rmtree(undo_path(target), ignore_errors=True)


def undo_interrupted(target: Path) -> None:
    """Undo what a killed run began on `target`. Raises UnreadableCheckpoint where that run still lives."""
    target = target.resolve()
    if not (undo_path(target) / "record.json").exists():
        return
    try:
        with locked(target):
            clear_leftovers(target)
    except Refused as busy:
        raise UnreadableCheckpoint(busy.problems) from busy


def undo_leftover(target: Path) -> None:
    """Do what the record beside `target` says, if there is one. Raises UnreadableCheckpoint where it is not ours."""
    record = undo_path(target) / "record.json"
    if record.exists():
        undo = _read_record(record, target)
        undo.run()
        undo.end()


def _read_record(record: Path, target: Path) -> Undo:
    """The record, which may have come with an archive or a repository: nothing outside the two folders is touched."""
    names = parse_json(record.read_bytes(), str(record))
    wellformed = names.keys() == {"replaced", "added", "folders"} and all(
        isinstance(group, list) and all(isinstance(name, str) for name in group) for group in names.values()
    )
    if wellformed and not record.parent.is_symlink():
        undo = Undo(target, **{key: tuple(group) for key, group in names.items()})
        every = (*undo.replaced, *undo.added, *undo.folders)
        if all(_is_inside(target / name, target) and _is_inside(undo.kept(name), undo.folder) for name in every):
            return undo
    remedy = f"Remove {record.parent}, unless a run of yours was killed"
    raise UnreadableCheckpoint(Problem("unsafe-name", "names files elsewhere", str(record), remedy=remedy))


def _is_inside(path: Path, folder: Path) -> bool:
    """Does `path` name an entry in `folder` or in a folder inside it, links on the way followed?"""
    return path.name not in ("", "..") and path.parent.resolve().is_relative_to(folder.parent.resolve() / folder.name)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk, where its file system knows such a thing."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush the names in `folder` and all folders inside it."""
    for path, _, _ in os.walk(folder):
        sync_folder(Path(path))


def _acquire(path: Path, target: Path) -> int:
    """Open and lock `path`; anew where its last holder removed it meanwhile."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except FileNotFoundError:
            pass
        except BlockingIOError as error:
            os.close(handle)
            problem = Problem("target-busy", "another run is writing it", str(target), remedy="Wait for it to end")
            raise Refused(problem) from error
        except OSError as error:
            if error.errno in _CANNOT_LOCK and not staging_path(target).exists():
                return handle
            os.close(handle)
            raise
        os.close(handle)
