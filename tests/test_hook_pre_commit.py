"""`.pre-commit-hooks.yaml` under the tool pre-commit: which commit is judged at which stage."""

from __future__ import annotations

import pytest
from building import INDEX, dense_llama, edit_json
from hooking import Clone, needs_git, needs_lfs, said
from pre_committing import MANIFEST, gated_by_pre_commit, needs_pre_commit, pre_commit

pytestmark = [needs_git, needs_lfs, needs_pre_commit]


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A sound checkpoint, pushed through the hook; `ckpt-gate` lets no warning pass."""
    clone = gated_by_pre_commit(tmp_path_factory.mktemp("push"), "ckpt-gate", "pre-push", "--strict")
    dense_llama(clone.folder)
    clone.commit("sound")
    assert clone.push().returncode == 0
    return clone


@pytest.fixture(scope="module")
def committing(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A sound checkpoint, committed through `ckpt-gate-commit`."""
    clone = gated_by_pre_commit(tmp_path_factory.mktemp("commit"), "ckpt-gate-commit", "pre-commit")
    dense_llama(clone.folder)
    clone.git("add", "--all")
    done = clone.git("commit", "-m", "sound", check=False)
    assert done.returncode == 0, said(done)
    return clone


def break_it(clone: Clone) -> None:
    edit_json(clone.folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))


def test_the_manifest_is_one(pushing: Clone) -> None:
    assert pre_commit(pushing, "validate-manifest", str(MANIFEST)).returncode == 0


def test_the_hook_of_git_lfs_still_brings_the_weights(pushing: Clone) -> None:
    assert len(list(pushing.remote.glob("lfs/objects/*/*/*"))) == 2


def test_later_pushes_are_judged_too_with_the_arguments_of_the_configuration(pushing: Clone) -> None:
    pushing.git("checkout", "--quiet", "-b", "later")
    edit_json(pushing.folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    commit = pushing.commit()
    done = pushing.push("origin", "later", "later:main")
    assert done.returncode != 0
    assert f"at {commit[:12]}, 2 shards" in said(done)
    assert "W F10 " in said(done)


def test_a_manual_run_judges_head(pushing: Clone) -> None:
    pushing.git("checkout", "--quiet", "main")
    done = pre_commit(pushing, "run", "--hook-stage", "manual", "--verbose", "ckpt-gate")
    assert "ckpt: HEAD at " in done.stdout


def test_a_commit_is_judged_by_what_it_would_hold(committing: Clone) -> None:
    head = committing.git("rev-parse", "HEAD").stdout
    sound = (committing.folder / INDEX).read_text()
    break_it(committing)
    committing.git("add", INDEX)
    (committing.folder / INDEX).write_text(sound)
    done = committing.git("commit", "-m", "broken", check=False)
    assert done.returncode != 0
    assert "ckpt: what is to be committed, 2 shards: " in said(done)
    assert "E F06 " in said(done)
    assert "git commit --no-verify" in said(done)
    assert committing.git("rev-parse", "HEAD").stdout == head
    committing.git("reset", "--quiet", "--hard")


def test_a_shard_that_is_removed_is_missed(committing: Clone) -> None:
    committing.git("rm", "--quiet", "model-00002-of-00002.safetensors")
    done = committing.git("commit", "-m", "broken", check=False)
    assert done.returncode != 0
    assert "E F04 " in said(done)
