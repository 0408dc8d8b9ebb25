"""The tool pre-commit over this project's own `.pre-commit-hooks.yaml`.

Real: pre-commit itself, the git hooks that it installs, the manifest, the refs that it hands over. Not real, so that no
test reaches a network: the environment. pre-commit would install this project by pip; `language: system` in the user's
configuration makes it call the `ckpt` on the PATH, which is this source tree.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hooking import ROOT, Clone, Run, hook_script, new_clone, run

MANIFEST = ROOT / ".pre-commit-hooks.yaml"
PROGRAM = shutil.which("pre-commit")
needs_pre_commit = pytest.mark.skipif(not find_spec("pre_commit") and not PROGRAM, reason="pre-commit is not installed")


def program_of(folder: Path) -> Path:
    """A folder for the PATH in which `ckpt` is this source tree."""
    hook_script(folder, f'PYTHONPATH={ROOT} exec {sys.executable} -P -m ckpt "$@"', "ckpt")
    return folder


def gated_by_pre_commit(home: Path, hook: str, stage: str, *arguments: str, lfs: bool = True) -> Clone:
    """A clone in which pre-commit calls `hook` of this project at `stage`."""
    plain = new_clone(home, lfs=lfs)
    places = {"PATH": f"{program_of(home / 'bin')}:{plain.environment['PATH']}", "PRE_COMMIT_HOME": str(home / "cache")}
    clone = Clone(plain.folder, plain.remote, {**plain.environment, **places})
    project = home / "project"
    run("git", "init", "--quiet", project, cwd=home, environment=clone.environment, check=True)
    shutil.copy(MANIFEST, project)
    for words in (("add", "--all"), ("commit", "--quiet", "-m", "x")):
        run("git", *words, cwd=project, environment=clone.environment, check=True)
    revision = run("git", "rev-parse", "HEAD", cwd=project, environment=clone.environment, check=True).stdout.strip()
    (clone.folder / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {project}\n  rev: {revision}\n  hooks:\n"
        f"  - {{id: {hook}, language: system, args: [{', '.join(arguments)}]}}\n"
    )
    pre_commit(clone, "install", "--hook-type", stage)
    return clone


def pre_commit(clone: Clone, *arguments: str, check: bool = True) -> Run:
    command = (sys.executable, "-m", "pre_commit") if find_spec("pre_commit") else (str(PROGRAM),)
    return run(*command, *arguments, cwd=clone.folder, environment=clone.environment, check=check)
