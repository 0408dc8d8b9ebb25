"""What a run leaves beside its target while it works, and how the next run undoes what a killed one began.

Beside `model` stand `.model.ckpt-lock` (held as long as a run lives), `.model.ckpt-new` (the folder to be),
`.model.ckpt-journal` (which of its shards are finished), `.model.ckpt-spool` (downloads) and, only where files have to
be replaced one by one, `.model.ckpt-undo`: the files replaced, and a record of what to undo. As SQLite does with a hot
journal, whoever opens a folder that has such a record puts the old files back first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpoint.document import parse_json
from checkpoint.errors import Problem, Refused, UnreadableCheckpoint, WriteFailed, naming
from checkpoint.locking import lock_path, locked
from checkpoint.wholefile import read_whole, sync_folder

MAX_RECORD = 64 * 1024 * 1024
"""Bytes; a name for each file of a folder."""

MAX_LINE = 4096
"""Bytes of a journal's first line."""

_MAY_NOT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}


def staging_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-new"


def journal_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-journal"


def spool_path(target: Path) -> Path:
    return target.parent / f".{target.name}.ckpt-spool"


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
        with naming(draft), draft.open("x") as file:
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


def clear_leftovers(target: Path, finished: Collection[str] = ()) -> None:
    """Undo what a killed run began and remove what it left, but for the `finished` files of the folder to be. Only for
    the holder of the lock."""
    undo_leftover(target)
    staged = staging_path(target)
    for folder in (undo_path(target), staged):
        if folder.is_dir() and not folder.is_symlink() and not (folder == staged and finished):
            _remove_folder(folder)
    for path in staged.iterdir() if finished else ():
        if path.name not in finished:
            _remove_folder(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _remove_folder(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except RecursionError as error:
        found = "holds folders that are too deep in one another to be removed"
        raise Refused(Problem("leftover-deep", found, str(folder), remedy="Remove it: rm -r")) from error


def discard(target: Path) -> None:
    """Remove what stands beside `target`, save the old files of a step that could be neither ended nor undone.

    What cannot be removed now is removed by the next run; the target is right whatever becomes of it.
    """
    _remove(staging_path(target))
    _remove(spool_path(target))
    with suppress(OSError):
        journal_path(target).unlink()
    discard_undone(target)


def discard_undone(target: Path) -> None:
    """Remove the old files of a step that came to its end, or was undone, or had not begun."""
    if not (undo_path(target) / "record.json").exists():
        _remove(undo_path(target))


def _remove(path: Path) -> None:
    """Remove a folder, if it can be; or what stands in its place: to open a pipe, as removing a folder does, would have
    us wait for a writer."""
    with suppress(OSError, RecursionError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def undo_interrupted(target: Path) -> None:
    """Undo what a killed run began on `target`, and remove what it left that nothing can go on from.

    Raises UnreadableCheckpoint where that run still lives and is replacing files.
    """
    target = target.resolve()
    if not (undo_path(target) / "record.json").exists():
        sweep(target)
        return
    try:
        with locked(target):
            clear_leftovers(target)
            discard(target)
    except Refused as busy:
        raise UnreadableCheckpoint(busy.problems) from busy


def sweep(target: Path) -> None:
    """Remove what stands beside `target` of a run that ended behind its publication, or before it had begun: no run can
    go on from it. Where one lives, or there is no right to, nothing happens."""
    if _is_litter(target):
        with suppress(OSError, Refused), locked(target):
            if _is_litter(target):
                clear_leftovers(target)
                discard(target)


@contextmanager
def editing(folder: Path) -> Iterator[None]:
    """Be the only run that changes single files of `folder`.

    Raises Refused where another run is writing it, WriteFailed where that cannot be known.

    Where nothing may be created beside it, no run of this user can replace it either: then there is no lock.
    """
    target = folder.resolve()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(target))
        except OSError as error:
            if error.errno not in _MAY_NOT:
                raise WriteFailed(Problem("write-failed", error.strerror or str(error), str(target))) from error
        undo_leftover(target)
        yield


def refuse_busy(folder: Path) -> None:
    """Raise Refused where a run is writing `folder`."""
    with editing(folder):
        pass


def _is_litter(target: Path) -> bool:
    """Is there anything beside `target`, and nothing that a run can go on from?"""
    paths = (staging_path(target), journal_path(target), spool_path(target), undo_path(target), lock_path(target))
    left = any(map(os.path.lexists, paths))
    return left and not _can_go_on(target) and not (undo_path(target) / "record.json").exists()


def _can_go_on(target: Path) -> bool:
    """Is the folder to be the very one that its journal is of? One that was exchanged holds old files."""
    try:
        first = json.loads(_first_line(journal_path(target)))
        return bool(first["folder"] == staging_path(target).lstat().st_ino)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def _first_line(path: Path) -> bytes:
    """The first line of a regular file; a pipe of that name would have us wait for a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.pread(handle, MAX_LINE, 0).partition(b"\n")[0]
    finally:
        os.close(handle)


def undo_leftover(target: Path) -> None:
    """Do what the record beside `target` says, if there is one. Raises UnreadableCheckpoint where it is not ours."""
    record = undo_path(target) / "record.json"
    if record.exists():
        undo = _read_record(record, target)
        undo.run()
        undo.end()


def _read_record(record: Path, target: Path) -> Undo:
    """The record, which may have come with an archive or a repository: nothing outside the two folders is touched."""
    names = parse_json(_read(record), str(record))
    wellformed = names.keys() == {"replaced", "added", "folders"} and all(
        isinstance(group, list) and all(isinstance(name, str) and _is_spelled(name) for name in group)
        for group in names.values()
    )
    if wellformed and not record.parent.is_symlink():
        undo = Undo(target, **{key: tuple(group) for key, group in names.items()})
        every = (*undo.replaced, *undo.added, *undo.folders)
        if all(_is_inside(target / name, target) and _is_inside(undo.kept(name), undo.folder) for name in every):
            return undo
    remedy = f"Remove {record.parent}, unless a run of yours was killed"
    raise UnreadableCheckpoint(Problem("unsafe-name", "names files elsewhere", str(record), remedy=remedy))


def _read(record: Path) -> bytes:
    try:
        return read_whole(record, MAX_RECORD, linked=False)
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), str(record))) from error


def _is_spelled(name: str) -> bool:
    """Can a file system have such a name at all?"""
    return "\0" not in name and not any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in name)


def _is_inside(path: Path, folder: Path) -> bool:
    """Does `path` name an entry in `folder` or in a folder inside it, links on the way followed?"""
    try:
        home = folder.parent.resolve() / folder.name
        return path.name not in ("", "..") and path.parent.resolve().is_relative_to(home)
    except RuntimeError:  # a loop of links, which is an OSError from Python 3.13 on
        return False


def sync_tree(folder: Path) -> None:
    """Flush the names in `folder` and all folders inside it, however deep."""
    left = [os.fspath(folder)]
    while left:
        here = left.pop()
        sync_folder(Path(here))
        with os.scandir(here) as entries:
            left += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
