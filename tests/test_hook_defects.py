"""Ten ways in which checkpoints are wrong, each stopped by every hook; what is sound passes every hook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from defects.build import Defect
from defects.sound import BODY, DENSE, EXPERTS, SOUND
from hooking import LFS, Clone, defect, needs_git, needs_lfs, new_clone, said, write_broken
from pre_committing import gated_by_pre_commit, needs_pre_commit

from ckpt.hooks.installing import KEPT
from verify import gate

pytestmark = [needs_git, needs_lfs]

TEN = [
    defect("F01", DENSE, "a header that is no JSON"),
    defect("F02", DENSE, "cut within the data"),
    defect("F03", DENSE, "a git-lfs pointer"),
    defect("F04", DENSE, "a shard is missing"),
    defect("F06", DENSE, "a tensor left out of the index"),
    defect("I01", EXPERTS, "all experts of a layer"),
    defect("M01", BODY, "no MTP head"),
    defect("M03", BODY, "not ignored at all"),
    defect("C08", DENSE, "a packed projection ignored"),
    defect("T01", DENSE, "no weight_scale"),
]
each_of_ten = pytest.mark.parametrize("broken", TEN, ids=lambda broken: broken.id)


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with the hook that `ckpt hook install` puts there."""
    clone = new_clone(tmp_path_factory.mktemp("hook"))
    clone.ckpt("hook", "install")
    return clone


@pytest.fixture(scope="module")
def pre_committed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with the hook that pre-commit puts there; git itself keeps the shards."""
    return gated_by_pre_commit(tmp_path_factory.mktemp("tool"), "ckpt-gate", "pre-push", lfs=False)


@each_of_ten
def test_a_push_of_each_is_refused_and_says_why(pushing: Clone, broken: Defect) -> None:
    commit(pushing, broken)
    done = pushing.push()
    assert done.returncode != 0
    assert findings(said(done)) == {broken.rule}
    assert "git push --no-verify" in said(done)
    assert pushing.on_remote == {}


@needs_pre_commit
@each_of_ten
def test_a_push_of_each_under_pre_commit_is_refused(pre_committed: Clone, broken: Defect) -> None:
    commit(pre_committed, broken)
    done = pre_committed.push()
    assert done.returncode != 0
    assert findings(said(done)) == {broken.rule}
    assert pre_committed.on_remote == {}


@each_of_ten
def test_the_gate_in_python_stops_each(tmp_path: Path, broken: Defect) -> None:
    result = gate(write_broken(broken, tmp_path))
    assert not result.allowed
    assert {finding.rule for finding in result.blocking} == {broken.rule}


@pytest.mark.parametrize("name", [BODY])
def test_what_is_sound_passes_every_hook(
    tmp_path_factory: pytest.TempPathFactory, pushing: Clone, request: pytest.FixtureRequest, name: str
) -> None:
    build = SOUND[name]()
    assert gate(build.write(tmp_path_factory.mktemp("sound"))).allowed
    assert accepted(pushing, name)
    if not needs_pre_commit.args[0]:
        assert accepted(request.getfixturevalue("pre_committed"), name)


def accepted(clone: Clone, name: str) -> bool:
    """Push the sound checkpoint to a branch of its own; is it there?"""
    commit(clone, Defect(name, name, "-"))
    done = clone.push("origin", f"main:refs/heads/{name}")
    assert done.returncode == 0, said(done)
    there = f"refs/heads/{name}" in clone.on_remote
    clone.git("push", "--no-verify", "--quiet", "origin", "--delete", name)
    return there


def commit(clone: Clone, broken: Defect) -> None:
    """The broken checkpoint in place of what was there, its shards kept by git-lfs where that has its hook; a pointer
    stands for itself only where git keeps it."""
    for path in clone.folder.iterdir():
        if not path.name.startswith("."):
            path.unlink()
    by_lfs = (clone.hooks / KEPT).exists() and broken.rule != "F03"
    (clone.folder / ".gitattributes").write_text(LFS if by_lfs else "")
    write_broken(broken, clone.folder)
    clone.commit(broken.id)


def findings(text: str) -> set[str]:
    """The rules of the errors in what was printed."""
    return set(re.findall(r"^  E ([A-Z]\d\d) ", text, re.MULTILINE))
