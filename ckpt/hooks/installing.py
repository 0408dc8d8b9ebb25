"""The pre-push hook in a clone: put there, beside what was there, and taken out again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from checkpoint import Problem, Refused, WriteFailed
from ckpt.hooks.git import Git
from ckpt.hooks.settings import forget_settings

HOOK = "pre-push"
KEPT = f"{HOOK}.kept-by-ckpt"
MARK = "# The gate of ckpt: what is pushed is judged first."

SCRIPT = """#!/bin/sh
{mark} See `ckpt hook --help`; `ckpt hook uninstall` takes it out.
kept="$(dirname "$0")/{kept}"
refs=$(cat)
tell() {{ if [ -n "$refs" ]; then printf '%s\\n' "$refs"; fi; }}
if [ -x {python} ] && [ -f {command} ]; then
    tell | {path}{python} -P -m ckpt hook run {hook} "$@" || exit
elif command -v ckpt >/dev/null; then
    tell | ckpt hook run {hook} "$@" || exit
else
    echo "ckpt: refused, nothing is pushed: the gate of this repository is gone." >&2
    echo "      Neither" {python} "can run it, nor is ckpt on the PATH. Install it again (pip install ckpt-surgery)" >&2
    echo "      and run \\`ckpt hook install\\`, or remove $0; git push --no-verify pushes as it is." >&2
    exit 3
fi
if [ -x "$kept" ]; then tell | "$kept" "$@"; fi
"""
"""`-P` keeps Python from importing modules that lie about in the repository that is pushed."""


@dataclass(frozen=True)
class State:
    """The hook of a clone: `hook` is its file, `kept` the hook that runs after it, if there is one."""

    hook: Path
    installed: bool
    kept: Path | None
    shared: bool
    without_lfs: bool


def state(git: Git) -> State:
    """How it stands. `git.folder` is the top of a working tree."""
    hook = git.path("hooks") / HOOK
    kept = hook.with_name(KEPT)
    there = os.path.lexists(kept)
    shared = git.line("config", "core.hooksPath") is not None
    return State(hook, _is_ours(hook), kept if there else None, shared, _without_lfs(git, hook.parent))


def install(git: Git) -> State:
    """Put the hook in place of the one that is there, which is kept and runs after it; or renew it.

    Raises Refused where another hook took its place and would be lost, WriteFailed where it cannot be written.
    """
    before = state(git)
    try:
        before.hook.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(before.hook) and not before.installed:
            if before.kept:
                remedy = f"Remove the one that is of no more use; {HOOK} is kept under the other name"
                raise Refused(
                    Problem("hook-kept", f"{HOOK} and {KEPT} are both there", str(before.hook.parent), remedy=remedy)
                )
            before.hook.rename(before.hook.with_name(KEPT))
        _write(before.hook)
    except OSError as error:
        raise WriteFailed(Problem("hook-unwritable", error.strerror or str(error), str(before.hook))) from error
    return state(git)


def uninstall(git: Git) -> State:
    """Take the hook out, put the one that was kept back, and forget the settings. Returns how it stood before."""
    before = state(git)
    try:
        if before.installed and before.kept:
            before.kept.replace(before.hook)
        elif before.installed:
            before.hook.unlink()
    except OSError as error:
        raise WriteFailed(Problem("hook-unwritable", error.strerror or str(error), str(before.hook))) from error
    forget_settings(git)
    return before


def _write(hook: Path) -> None:
    """The script, whole and executable before it has its name."""
    home = Path(__file__).parents[2]
    path = "" if _is_importable() else f"PYTHONPATH={shlex.quote(str(home))}${{PYTHONPATH:+:$PYTHONPATH}} "
    python, command = shlex.quote(sys.executable), shlex.quote(str(home / "ckpt" / "hook.py"))
    text = SCRIPT.format(mark=MARK, python=python, command=command, kept=KEPT, path=path, hook=HOOK)
    draft = hook.with_name(f".{HOOK}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(hook)


def _is_importable() -> bool:
    """Is this package installed, so that its interpreter finds it wherever it is started?"""
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", "import ckpt"]
    return not subprocess.run(command, env=bare, capture_output=True, check=False).returncode


def _is_ours(hook: Path) -> bool:
    return MARK in _text(hook)


def _without_lfs(git: Git, folder: Path) -> bool:
    """Does git-lfs keep files of this repository, while no pre-push hook brings them to the remote?"""
    if any("git lfs" in _text(hook) or "git-lfs" in _text(hook) for hook in folder.glob(f"{HOOK}*")):
        return False
    attributes = git.line("rev-parse", "--show-toplevel")
    return attributes is not None and "filter=lfs" in _text(Path(attributes) / ".gitattributes")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
