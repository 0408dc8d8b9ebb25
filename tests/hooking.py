"""Clones as their owners have them: real git and git-lfs, hooks that really run, a bare repository for the Hub.

A file:// remote takes git-lfs's objects by its standalone transfer agent, so nothing here reaches a network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from defects.build import Defect
from defects.corpus import CORPUS
from defects.sound import SOUND

ROOT = Path(__file__).parent.parent
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
LFS = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
needs_lfs = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")

Run = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Clone:
    """A clone with the bare repository `remote` as its origin; `environment` keeps the settings of this machine out."""

    folder: Path
    remote: Path
    environment: Mapping[str, str] = field(repr=False)

    def git(self, *arguments: str | Path, check: bool = True, **environment: str) -> Run:
        return run("git", *arguments, cwd=self.folder, environment={**self.environment, **environment}, check=check)

    def ckpt(self, *arguments: str | Path, check: bool = True, given: str = "", **environment: str) -> Run:
        """The command, started where the clone is, from this source tree."""
        surroundings = {**self.environment, "PYTHONPATH": str(ROOT), **environment}
        command = (sys.executable, "-P", "-m", "ckpt", *arguments)
        return run(*command, cwd=self.folder, environment=surroundings, check=check, given=given)

    def commit(self, message: str = "x") -> str:
        """Everything that is in the folder, committed without hooks; the commit's name."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--no-verify", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").stdout.strip()

    def push(self, *arguments: str, **environment: str) -> Run:
        return self.git("push", *(arguments or ("origin", "main")), check=False, **environment)

    @property
    def on_remote(self) -> dict[str, str]:
        """The remote's refs, by name."""
        listed = self.git("ls-remote", "--refs", str(self.remote)).stdout.splitlines()
        return {name: commit for commit, name in (line.split() for line in listed)}

    @property
    def hooks(self) -> Path:
        return self.folder / ".git" / "hooks"


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str], check: bool, given: str = "") -> Run:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=dict(environment), input=given, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


def new_clone(home: Path, *, lfs: bool = True) -> Clone:
    """An empty repository and its remote in `home`. With `lfs`, git-lfs keeps the shards and has its hooks there."""
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "gitconfig"
    settings.write_text(
        "[user]\nname = N\nemail = n@example.org\n[init]\ndefaultBranch = main\n[advice]\ndetachedHead = false\n"
        '[protocol "file"]\nallow = always\n'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))}
    environment |= {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(settings), "GIT_CONFIG_NOSYSTEM": "1"}
    environment["GIT_TERMINAL_PROMPT"] = "0"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes would each compile what was just edited
    clone = Clone(home / "clone", home / "remote.git", environment)
    run("git", "init", "--quiet", "--bare", clone.remote, cwd=home, environment=environment, check=True)
    run("git", "init", "--quiet", clone.folder, cwd=home, environment=environment, check=True)
    clone.git("remote", "add", "origin", clone.remote.as_uri())
    if lfs:
        clone.git("lfs", "install", "--skip-repo")
        clone.git("lfs", "update")
        (clone.folder / ".gitattributes").write_text(LFS)
    return clone


def copied(template: Clone, home: Path) -> Clone:
    """The same clone and remote in another place, which is faster than to make them anew."""
    shutil.copytree(template.folder.parent, home, symlinks=True)
    places = {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / "gitconfig")}
    clone = Clone(home / "clone", home / "remote.git", {**template.environment, **places})
    clone.git("remote", "set-url", "origin", clone.remote.as_uri())
    return clone


def defect(rule: str, on: str, name: str) -> Defect:
    """A defect of the corpus."""
    (found,) = (one for one in CORPUS if (one.rule, one.on, one.name) == (rule, on, name))
    return found


def write_broken(broken: Defect, folder: Path) -> Path:
    """The checkpoint with the defect, in `folder`, beside what is there."""
    build = SOUND[broken.on]().copy()
    if broken.edit:
        broken.edit(build)
    build.write(folder)
    if broken.damage:
        broken.damage(folder)
    return folder


def said(done: Run) -> str:
    """What a person sees."""
    return done.stdout + done.stderr


def hook_script(folder: Path, text: str, name: str = "pre-push", **more: Any) -> Path:
    """A hook of somebody else's."""
    folder.mkdir(parents=True, exist_ok=True)
    hook = folder / name
    hook.write_text(f"#!/bin/sh\n{text}\n")
    hook.chmod(more.get("mode", 0o755))
    return hook
