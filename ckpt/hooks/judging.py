"""The gate over what git would bring to the Hub: which checkpoints are in it, and what stands against each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import basename, dirname
from typing import TYPE_CHECKING

from checkpoint import CkptError, Problem
from ckpt.hooks.contents import Contents, already_there, contents_of, too_large
from ckpt.hooks.git import Git
from ckpt.hooks.lfs import NotJudged, fetch, not_here
from ckpt.hooks.settings import Settings
from ckpt.hooks.target import Pushed, Target, index_target, targets
from ckpt.hooks.tree import Entry, checkpoints_in, files_of, inside

if TYPE_CHECKING:
    from checkpoint import Checkpoint
    from verify import GateResult, Waiver

TOO_LARGE = "the Hub would reject it"


@dataclass(frozen=True)
class Verdict:
    """What was said of one checkpoint: the gate's `result`, or `problems` that forbid, or in `note` why it passes.

    `folder` is where it is in the repository, empty for its top. Of what was not `judged` no fault is known.
    """

    target: Target
    folder: str
    shards: int
    result: GateResult | None = None
    checkpoint: Checkpoint | None = None
    problems: tuple[Problem, ...] = ()
    headline: str = ""
    note: str = ""
    judged: bool = True

    @property
    def allowed(self) -> bool:
        return not self.problems and (self.result is None or self.result.allowed)


def judge_pushed(
    git: Git, pushed: Sequence[Pushed], settings: Settings, remote: str | None = None
) -> Iterator[Verdict]:
    """Judge the tips of what is pushed to `remote`, a name or an address. What cannot be judged is a verdict, too."""
    for target in targets(git, pushed, remote):
        yield from _told(git, target, settings, remote)


def judge_index(git: Git, settings: Settings) -> Iterator[Verdict]:
    """Judge what `git commit` is about to commit."""
    yield from _told(git, index_target(git), settings, None)


def _told(git: Git, target: Target, settings: Settings, remote: str | None) -> Iterator[Verdict]:
    """The verdicts on a target; one that forbids it where not all of it could be judged."""
    files = files_of(git, target.tree)
    folders, others = checkpoints_in(files)
    for folder in others:
        yield Verdict(target, folder, _shards(files, folder), note="not judged: no config.json beside them, no index")
    if not folders:
        return
    try:
        yield from _verdicts(git, target, files, folders, settings, remote)
    except CkptError as error:
        count = sum(_shards(files, folder) for folder in folders)
        yield Verdict(target, "", count, problems=error.problems, headline=error.headline, judged=False)


def _verdicts(
    git: Git, target: Target, files: Sequence[Entry], folders: Sequence[str], settings: Settings, remote: str | None
) -> Iterator[Verdict]:
    entries = inside(files, folders)
    count = sum(_shards(files, folder) for folder in folders)
    large = tuple(too_large(entries))
    if large:
        yield Verdict(target, "", count, problems=large, headline=TOO_LARGE)
        return
    contents = contents_of(git, target.tree, entries)
    known = already_there(git, target, folders, entries) if contents.absent else None
    if known:
        note = f"not judged: the same as in {known[:12]}, which is there already, and not all of its files are here"
        yield Verdict(target, "", count, note=note)
        return
    contents = _complete(contents, git, target, settings, remote)
    waivers = _waivers(git, files, settings.waivers)
    with contents.view() as root:
        for folder in folders:
            yield _gated(root, target, folder, _shards(files, folder), settings, waivers)


def _complete(contents: Contents, git: Git, target: Target, settings: Settings, remote: str | None) -> Contents:
    """With what git-lfs has elsewhere, if it may be fetched. Raises NotJudged where something is left."""
    commit = target.commit or "HEAD"
    if contents.absent and settings.fetch:
        fetch(git, commit, remote)
        contents = contents_of(git, target.tree, [*contents.plain, *contents.weights, *contents.absent])
    if contents.absent:
        raise not_here(git, [entry.path for entry in contents.absent], commit)
    return contents


def _gated(
    root: Path, target: Target, folder: str, shards: int, settings: Settings, waivers: Sequence[Waiver]
) -> Verdict:
    """The gate's result, its report named after the folder in the repository, not after where it was viewed."""
    from checkpoint import survey
    from verify import gate
    from verify.case import ENGINES

    checkpoint = survey(root / folder)
    result = gate(
        checkpoint,
        level=settings.level,
        base=settings.base,
        engines=settings.engine or ENGINES,
        strict=settings.strict,
        waivers=waivers,
    )
    named = replace(result, report=replace(result.report, checkpoint=folder or "."))
    return Verdict(target, folder, shards, named, checkpoint)


def _waivers(git: Git, files: Sequence[Entry], name: str | None) -> tuple[Waiver, ...]:
    """The waivers in the file `name` of the commit itself: who reads the repository can see what was let pass, and why.

    Raises BadWaiver, and NotJudged where the commit has no such file.
    """
    if name is None:
        return ()
    from verify import BadWaiver, load_waivers

    found = next((entry for entry in files if entry.path == name and not entry.is_link), None)
    if found is None:
        remedy = "Commit it, or: git config --unset ckpt.waivers"
        raise NotJudged(
            Problem("waivers-missing", "waivers are to be read from it, and it is not there", name, remedy=remedy)
        )
    with tempfile.TemporaryDirectory(prefix="ckpt-") as folder:
        path = Path(folder) / basename(name)
        path.write_bytes(next(git.blobs([found.oid])))
        try:
            return load_waivers(path)
        except BadWaiver as error:
            raise BadWaiver([replace(problem, file=name) for problem in error.problems]) from error


def _shards(files: Sequence[Entry], folder: str) -> int:
    return sum(entry.is_shard and dirname(entry.path) == folder for entry in files)
