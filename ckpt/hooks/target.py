"""What a hook was called for: the tip of each ref that is pushed, or what is about to be committed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkpoint import Problem
from ckpt.hooks.git import Git, GitFailed


@dataclass(frozen=True)
class Pushed:
    """An object and the ref that it is pushed to; `known` is what the remote has there, None for nothing."""

    ref: str
    object: str
    known: str | None = None


@dataclass(frozen=True)
class Target:
    """A tree to judge, once for all `refs` that get it. `commit` is None for what is not committed yet; `known` are
    commits that are where it goes."""

    refs: tuple[str, ...]
    tree: str
    commit: str | None
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{', '.join(self.refs)} at {self.commit[:12]}" if self.commit else ", ".join(self.refs)


def pushed_by_git(lines: str) -> list[Pushed]:
    """What git tells a pre-push hook (githooks(5)): `LOCAL-REF LOCAL-OBJECT REMOTE-REF REMOTE-OBJECT` for each ref.

    An object of zeros is none: of what is only deleted nothing is to be judged. Raises GitFailed for any other line.
    """
    found = []
    for line in lines.splitlines():
        fields = line.rsplit(maxsplit=3)  # the local ref may be anything that names a commit, `@{1 day ago}` too
        if len(fields) != 4:
            raise GitFailed(Problem("stdin-invalid", f"a pre-push hook was told {line!r}", expected="four fields"))
        _, local, ref, remote = fields
        if not _is_none(local):
            found.append(Pushed(ref, local, None if _is_none(remote) else remote))
    return found


def pushed_by_pre_commit(environment: Mapping[str, str] = os.environ) -> Pushed:
    """What the tool pre-commit tells its hooks; it sets no TO_REF where all commits are new. Else HEAD."""
    local = environment.get("PRE_COMMIT_TO_REF") or environment.get("PRE_COMMIT_LOCAL_BRANCH") or "HEAD"
    ref = environment.get("PRE_COMMIT_REMOTE_BRANCH") or local
    return Pushed(ref, local, environment.get("PRE_COMMIT_FROM_REF"))


def targets(git: Git, pushed: Sequence[Pushed], remote: str | None) -> list[Target]:
    """A target for each tree. What is no commit, no tag of one and no tree holds no checkpoint."""
    branches = _branches_of(git, remote)
    found: dict[str, Target] = {}
    for one in pushed:
        tree = git.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{one.object}^{{tree}}")
        if tree is None:
            continue
        commit = git.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{one.object}^{{commit}}")
        known = tuple(dict.fromkeys([*([one.known] if one.known else []), *branches]))
        before = found.get(tree)
        refs = (*before.refs, one.ref) if before else (one.ref,)
        found[tree] = replace(before, refs=refs) if before else Target(refs, tree, commit, known)
    return list(found.values())


def index_target(git: Git) -> Target:
    """What `git commit` is about to commit."""
    tree = os.fsdecode(git.run("write-tree")).strip()
    head = git.line("rev-parse", "--verify", "--quiet", "HEAD")
    return Target(("what is to be committed",), tree, None, (head,) if head else ())


def _branches_of(git: Git, remote: str | None) -> list[str]:
    """The commits that the remote's branches were at when they were last seen."""
    if not remote or remote not in (git.line("remote") or "").splitlines():
        return []
    return (git.line("for-each-ref", "--format=%(objectname)", f"refs/remotes/{remote}/") or "").split()


def _is_none(name: str) -> bool:
    return not name.strip("0")
