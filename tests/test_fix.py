"""`ckpt verify --fix`: findings become operations, one draft, one write; what is left is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from building import edit_json, found
from damaged import damaged, exported
from writing import change, config_of, digests, written

from checkpoint import open_checkpoint
from ckpt.fixing import mend, operation_for
from demo.damage import drop_draft_head
from surgery import Scheme, compare_dense, int8_head
from verify import Finding, Report, verify

ROOT = Path(__file__).parents[1]
INDEX = "model.safetensors.index.json"


def ckpt(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "verify", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def broken(qwen_moe_f32_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged(qwen_moe_f32_base, tmp_path_factory.mktemp("fix") / "broken")


@pytest.mark.parametrize(
    "rule, remedy, operation",
    [
        ("M01", "ckpt graft-mtp SRC --base BASE", "graft-mtp"),
        ("N06", "ckpt graft SRC --from BASE --tensors NAME", "restore-dense"),
        ("X05", "ckpt restore-files SRC --base BASE", "restore-files"),
        ("C07", "ckpt ignore SRC derive", "ignore"),
        ("C17", "Target the head by 're:.*lm_head$'", "target-head"),
        ("F10", "Write the checkpoint anew with any ckpt operation", "rewrite"),
        ("N04", "Pack the module again from the base: ckpt quantize BASE", None),
        ("F03", "", None),
    ],
)
def test_the_remedy_of_a_finding_names_its_operation(rule: str, remedy: str, operation: str | None) -> None:
    assert operation_for(Finding(rule, "error", "a", "b", remedy=remedy)) == operation


def test_fix_without_a_target_shows_the_plan_and_writes_nothing(broken: Path, qwen_moe_f32_base: Path) -> None:
    before = digests(broken)
    run = ckpt(broken, "--base", qwen_moe_f32_base, "--fix")
    assert run.returncode == 1
    for said in (
        "E M01",
        "graft-mtp: 41 tensors",
        "restore-dense: 17 tensors",
        "restore-files:",
        "nothing was written",
    ):
        assert said in run.stdout
    assert digests(broken) == before


def test_fix_mends_an_exporters_damage_in_one_write(broken: Path, qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ckpt(broken, "--base", qwen_moe_f32_base, "--fix", "--out", out)
    assert run.returncode == 0, run.stdout
    assert sum(line.startswith("wrote ") for line in run.stdout.splitlines()) == 1
    assert run.stdout.splitlines()[-1].startswith("nothing found: ")
    assert verify(out, base=qwen_moe_f32_base, level="full").findings == ()


def test_fix_in_place_replaces_the_source(broken: Path, qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(broken, tmp_path / "copy")
    assert ckpt(folder, "--base", qwen_moe_f32_base, "--fix", "--in-place").returncode == 0
    assert verify(folder, base=qwen_moe_f32_base, level="full").findings == ()


def test_the_report_for_machines_is_of_what_stands_afterwards(
    broken: Path, qwen_moe_f32_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    document = json.loads(ckpt(broken, "--base", qwen_moe_f32_base, "--fix", "--out", out, "--json").stdout)
    assert (document["checkpoint"], document["findings"]) == (str(out), [])
    planned = json.loads(ckpt(broken, "--base", qwen_moe_f32_base, "--fix", "--json").stdout)
    assert planned["checkpoint"] == str(broken)
    assert planned["counts"]["error"] > 0


def test_without_a_base_what_needs_one_is_named(broken: Path, tmp_path: Path) -> None:
    run = ckpt(broken, "--fix", "--out", tmp_path / "out")
    assert run.returncode == 1
    assert "not mended: M01 mtp.*: needs the base: --base" in run.stdout
    assert not (tmp_path / "out").exists()


def test_without_a_base_the_ignore_list_is_derived(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = exported(qwen_moe_base, tmp_path / "export")
    groups = ("quantization_config", "config_groups", "group_0")
    edit_json(folder / "config.json", lambda config: config[groups[0]][groups[1]][groups[2]].update(targets=["Linear"]))
    edit_json(folder / "config.json", lambda config: config[groups[0]].update(ignore=["lm_head"]))
    assert "C07" in found(verify(folder), "error")
    assert ckpt(folder, "--fix", "--out", tmp_path / "out").returncode == 0
    assert found(verify(tmp_path / "out"), "error") == []


def test_a_stale_total_is_mended_by_any_write(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = exported(qwen_moe_base, tmp_path / "export")
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    assert found(verify(folder)) == ["F10"]
    assert ckpt(folder, "--fix", "--out", tmp_path / "out", "--strict").returncode == 0
    assert verify(tmp_path / "out").findings == ()


def test_a_head_that_is_targeted_by_a_name_is_targeted_by_a_pattern(qwen_moe_base: Path, tmp_path: Path) -> None:
    export = exported(qwen_moe_base, tmp_path / "export")
    folder = written(export, tmp_path / "head", lambda draft: int8_head(draft, scheme=Scheme(8, 128)))
    groups = ("quantization_config", "config_groups", "group_1")
    edit_json(
        folder / "config.json", lambda config: config[groups[0]][groups[1]][groups[2]].update(targets=["lm_head"])
    )
    assert "C17" in found(verify(folder), "error")
    assert ckpt(folder, "--fix", "--in-place").returncode == 0
    assert config_of(folder)[groups[0]][groups[1]][groups[2]]["targets"] == ["re:.*lm_head$"]
    assert found(verify(folder), "error") == []


def test_what_no_rounding_explains_is_left_and_named(qwen_moe_base: Path, tmp_path: Path) -> None:
    """A smoothing step may have meant it; the draft head is mended all the same."""
    folder = exported(qwen_moe_base, tmp_path / "export")
    norm = "model.language_model.layers.1.input_layernorm.weight"
    change(folder, lambda state: state.update({norm: state[norm] * 3}), norm)
    drop_draft_head(folder)
    run = ckpt(folder, "--base", qwen_moe_base, "--fix", "--out", tmp_path / "out")
    assert run.returncode == 1
    assert f"not put back: {norm}: differs by up to" in run.stdout
    assert found(verify(tmp_path / "out", base=qwen_moe_base, level="full"), "error") == ["N06"]


def test_packed_weights_that_are_wrong_have_no_operation(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = exported(qwen_moe_base, tmp_path / "export")
    packed = "model.language_model.layers.1.mlp.experts.3.up_proj.weight_packed"
    change(folder, lambda state: state.update({packed: state[packed].flip(0).contiguous()}), packed)
    run = ckpt(folder, "--base", qwen_moe_base, "--fix", "--out", tmp_path / "out")
    assert run.returncode == 1
    assert (
        "not mended: N04 model.language_model.layers.1.mlp.experts.3.up_proj: no operation here mends it." in run.stdout
    )
    assert "nothing was written" in run.stdout
    assert not (tmp_path / "out").exists()


def test_a_base_of_another_lineage_is_refused(broken: Path, tmp_path: Path) -> None:
    from demo.qwen_moe import build_base

    stranger = build_base(tmp_path / "stranger", mtp_layout="per_expert", f32_state=True, seed=5)
    run = ckpt(broken, "--base", stranger, "--level", "headers", "--fix", "--out", tmp_path / "out")
    assert run.returncode == 3
    assert "dense tensors that were looked at start with the base's bytes" in run.stderr
    assert not (tmp_path / "out").exists()


def test_an_operation_that_is_refused_spoils_no_other(broken: Path, qwen_moe_base: Path, tmp_path: Path) -> None:
    """The base is quantized itself, so its config cannot be taken; the draft head can."""
    base = exported(qwen_moe_base, tmp_path / "quantized base")
    findings = (
        Finding("X05", "warning", "a", "b", remedy="ckpt restore-files SRC --base BASE"),
        Finding("C07", "error", "a", "b", remedy="ckpt ignore SRC derive"),
    )
    mending = mend(findings, open_checkpoint(broken), open_checkpoint(base))
    assert [finding.rule for finding in mending.mended] == ["C07"]
    ((finding, why),) = mending.left
    assert finding.rule == "X05"
    assert "is quantized itself" in why
    assert mending.draft.problems == ()


def test_an_operation_that_changes_nothing_mends_nothing(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = exported(qwen_moe_base, tmp_path / "export")
    origin, base = open_checkpoint(folder), open_checkpoint(qwen_moe_base)
    finding = Finding("N06", "error", "a", "b", remedy="ckpt graft SRC --from BASE --tensors NAME")
    mending = mend((finding,), origin, base, compare_dense(origin, base))
    assert mending.left == ((finding, "its operation finds nothing to change"),)


def test_a_sound_checkpoint_needs_no_mending(qwen_moe_base: Path, tmp_path: Path) -> None:
    folder = exported(qwen_moe_base, tmp_path / "export")
    run = ckpt(folder, "--fix", "--out", tmp_path / "out")
    assert run.returncode == 0
    assert not (tmp_path / "out").exists()
    assert Report("x", ()).ok()
