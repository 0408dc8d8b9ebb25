"""Putting the hook into a clone and taking it out again, with the hooks and settings that are there already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from building import INDEX, dense_llama, edit_json
from hooking import LFS, Clone, copied, hook_script, needs_git, needs_lfs, new_clone, said

from ckpt.hooks import Git, install
from ckpt.hooks.installing import KEPT

pytestmark = [needs_git, needs_lfs]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    clone = new_clone(tmp_path_factory.mktemp("template"), lfs=False)
    dense_llama(clone.folder)
    clone.commit("sound")
    return clone


@pytest.fixture
def bare(template: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A clone without hooks, with a sound checkpoint in it; git itself keeps the shards."""
    clone = copied(template, tmp_path / "home")
    for name in ("HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, clone.environment[name])
    return clone


def break_it(clone: Clone) -> None:
    edit_json(clone.folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    clone.commit("a warning")


def test_the_hook_of_git_lfs_stays_and_runs_once_the_gate_has_passed(tmp_path: Path) -> None:
    clone = new_clone(tmp_path)
    before = (clone.hooks / "pre-push").read_bytes()
    dense_llama(clone.folder)
    edit_json(clone.folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    clone.commit()
    assert f"then runs: {KEPT}" in clone.ckpt("hook", "install").stdout
    assert (clone.hooks / KEPT).read_bytes() == before
    assert clone.push().returncode != 0
    assert not list(clone.remote.glob("lfs/objects/*"))  # nothing of what is refused is uploaded
    dense_llama(clone.folder)
    clone.commit()
    assert clone.push().returncode == 0
    assert len(list(clone.remote.glob("lfs/objects/*/*/*"))) == 2


def test_the_kept_hook_is_told_what_the_gate_is_told_and_may_refuse(bare: Clone) -> None:
    hook_script(bare.hooks, 'cat > told; echo "$@" > given; exit 5')
    install(Git(bare.folder))
    done = bare.push()
    assert done.returncode != 0
    assert "nothing found" in said(done)
    commit = bare.git("rev-parse", "main").stdout.strip()
    assert (bare.folder / "told").read_text() == f"refs/heads/main {commit} refs/heads/main {'0' * 40}\n"
    assert (bare.folder / "given").read_text() == f"origin {bare.remote.as_uri()}\n"
    assert bare.on_remote == {}


def test_a_hook_that_git_would_not_run_is_kept_and_not_run(bare: Clone) -> None:
    hook_script(bare.hooks, "exit 5", mode=0o644)
    install(Git(bare.folder))
    assert bare.push().returncode == 0


def test_installing_twice_changes_nothing(bare: Clone) -> None:
    hook_script(bare.hooks, "exit 0")
    first = bare.ckpt("hook", "install").stdout
    files = {path.name: path.read_bytes() for path in bare.hooks.iterdir()}
    assert bare.ckpt("hook", "install").stdout == first
    assert {path.name: path.read_bytes() for path in bare.hooks.iterdir()} == files


def test_uninstalling_restores_what_was_there(bare: Clone) -> None:
    hook = hook_script(bare.hooks, "exit 0", mode=0o750)
    before = {path.name: (path.read_bytes(), path.stat().st_mode) for path in bare.hooks.iterdir()}
    settings = (bare.folder / ".git" / "config").read_bytes()
    bare.ckpt("hook", "install", "--strict", "--level", "full", "--engine", "vllm", "--engine", "sglang")
    assert hook.read_bytes() != before[hook.name][0]
    bare.ckpt("hook", "uninstall")
    assert {path.name: (path.read_bytes(), path.stat().st_mode) for path in bare.hooks.iterdir()} == before
    assert (bare.folder / ".git" / "config").read_bytes() == settings


def test_uninstalling_what_is_not_there_touches_no_hook(bare: Clone) -> None:
    hook = hook_script(bare.hooks, "exit 0")
    assert "was not in" in bare.ckpt("hook", "uninstall").stdout
    assert hook.exists()
    hook.unlink()
    install(Git(bare.folder))
    bare.ckpt("hook", "uninstall")
    assert not hook.exists()


def test_a_hook_that_took_its_place_is_not_lost(bare: Clone) -> None:
    hook_script(bare.hooks, "exit 0")
    install(Git(bare.folder))
    hook_script(bare.hooks, "exit 7")
    done = bare.ckpt("hook", "install", check=False)
    assert done.returncode == 3
    assert f"pre-push and {KEPT} are both there" in done.stderr
    assert "exit 7" in (bare.hooks / "pre-push").read_text()


def test_hooks_are_where_core_hooks_path_says(bare: Clone) -> None:
    """A relative one starts at the top, wherever the command runs."""
    bare.git("config", "core.hooksPath", "shared/hooks")
    (bare.folder / "notes").mkdir()
    done = bare.ckpt("hook", "install", "notes")
    assert (bare.folder / "shared" / "hooks" / "pre-push").stat().st_mode & 0o111
    assert "core.hooksPath is set" in done.stderr
    break_it(bare)
    bare.git("config", "ckpt.strict", "true")
    assert bare.push().returncode != 0


def test_a_gate_that_is_gone_refuses_and_says_how_to_go_on(bare: Clone, tmp_path: Path) -> None:
    """The interpreter of the installation was removed; a `ckpt` on the PATH takes its place."""
    install(Git(bare.folder))
    hook = bare.hooks / "pre-push"
    hook.write_text(hook.read_text().replace(sys.executable, "/nowhere/python"))
    done = bare.push()
    assert done.returncode != 0
    assert "the gate of this repository is gone" in done.stderr
    assert "/nowhere/python" in done.stderr
    assert "git push --no-verify" in done.stderr
    assert bare.on_remote == {}
    hook_script(tmp_path / "bin", 'cat > told; echo "$@" > given', "ckpt")
    assert bare.push(PATH=f"{tmp_path / 'bin'}:{bare.environment['PATH']}").returncode == 0
    assert (bare.folder / "given").read_text().startswith("hook run pre-push origin ")


def test_settings_are_gits_and_can_be_seen_and_changed(bare: Clone) -> None:
    break_it(bare)
    bare.ckpt("hook", "install", "--engine", "vllm@0.24", "--engine", "sglang")
    bare.git("config", "ckpt.strict", "yes")
    shown = bare.ckpt("hook", "status").stdout.splitlines()
    assert shown[1:] == ["ckpt.strict true", "ckpt.engine vllm@0.24", "ckpt.engine sglang"]
    done = bare.push()
    assert done.returncode != 0
    assert "W F10 " in said(done)


@pytest.mark.parametrize("key, value, expected", [("level", "deep", "headers, sample, full"), ("strict", "2", "true")])
def test_a_setting_that_means_nothing_refuses(bare: Clone, key: str, value: str, expected: str) -> None:
    bare.git("config", f"ckpt.{key}", value)
    done = bare.ckpt("hook", "run", "pre-push", check=False)
    assert done.returncode == 3
    assert f"ckpt.{key}: is '{value}'; expected {expected}" in done.stderr


def test_the_base_and_the_level_are_used(bare: Clone, tmp_path: Path) -> None:
    other = dense_llama(tmp_path / "base")
    (other / "LICENSE").write_text("terms\n")
    bare.ckpt("hook", "install", "--strict", "--base", other)
    done = bare.push()
    assert done.returncode != 0
    assert "W X09 LICENSE: missing" in said(done)
    assert f"ckpt restore-files . --base {other}" in said(done)


def test_waivers_are_read_from_the_commit_that_is_judged(bare: Clone) -> None:
    break_it(bare)
    bare.ckpt("hook", "install", "--strict", "--waivers", ".ckpt/waivers.yaml")
    waivers = bare.folder / ".ckpt" / "waivers.yaml"
    waivers.parent.mkdir()
    waivers.write_text("waivers:\n- rule: F10\n  reason: the server writes the index anew\n")
    done = bare.push()  # it is in the folder, and not in the commit
    assert done.returncode != 0
    assert ".ckpt/waivers.yaml: waivers are to be read from it, and it is not there" in said(done)
    bare.commit()
    done = bare.push()
    assert done.returncode == 0
    assert "waived: F10 " in said(done)
    assert "the server writes the index anew" in said(done)


def test_waivers_that_are_wrong_refuse_and_are_named_as_in_the_repository(bare: Clone) -> None:
    (bare.folder / "waivers.yaml").write_text("waivers:\n- rule: F10\n")
    bare.commit()
    done = bare.ckpt("hook", "run", "pre-push", "--waivers", "waivers.yaml", check=False)
    assert done.returncode == 3
    assert "  - waivers.yaml: " in said(done)


def test_where_git_lfs_has_no_hook_the_push_says_that_the_weights_stay(bare: Clone) -> None:
    """git-lfs puts its hook into a clone as soon as it has a file to keep, but not in the place of another."""
    bare.ckpt("hook", "install")
    bare.git("lfs", "install", "--skip-repo")
    (bare.folder / ".gitattributes").write_text(LFS)
    bare.git("rm", "--quiet", "--cached", "-r", ".")
    bare.commit()
    done = bare.push()
    assert "git-lfs has no pre-push hook here" in done.stderr
    (bare.hooks / "pre-push").unlink()
    bare.git("lfs", "update")
    assert "git-lfs has no pre-push hook here" not in bare.ckpt("hook", "install").stderr


@pytest.mark.parametrize("action", ["install", "status", "uninstall"])
def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path, action: str) -> None:
    clone = new_clone(tmp_path, lfs=False)
    done = clone.ckpt("hook", action, tmp_path, check=False)
    assert done.returncode == 3
    assert "not a git repository" in done.stderr


def test_an_engine_that_is_none_is_refused_before_anything_is_installed(bare: Clone) -> None:
    done = bare.ckpt("hook", "install", "--engine", "vlm", check=False)
    assert done.returncode == 3
    assert not (bare.hooks / "pre-push").exists()
