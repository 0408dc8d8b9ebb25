"""The whole chain by real llm-compressor, on a small Qwen MoE: two runs, one that succeeds and one that must not.

Both run in another Python, in which the packages that our driver must do without cannot be imported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gptq_builds import build, write_recipe
from safetensors.torch import load_file

from checkpoint import open_checkpoint, survey
from checkpoint.manifest import differences, read_manifest, traced
from schemas import validate
from surgery.calibration import read_set
from verify import verify

ROOT = Path(__file__).parents[1]
MISSING = ("ckpt", "jsonschema")

BLOCKING = f"""
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocked())
assert sys.argv[1] == "-m"
sys.argv = sys.argv[2:]
sys.path.insert(0, "")
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Run:
    """A run of the command and what it left. `work` is kept."""

    base: Path
    recipe: Path
    out: Path
    work: Path
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    (folder / "blocking.py").write_text(BLOCKING)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/blocking.py "$@"\n')
    python.chmod(0o755)
    return python


def ckpt(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", *map(str, arguments)]
    quick = os.environ | {"OMP_NUM_THREADS": "1"}  # matrices this small take longer on several threads
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=quick)


def run(base: Path, folder: Path, python: Path, *options: str, **recipe: Any) -> Run:
    path = write_recipe(folder, **recipe)
    out = folder / "out"
    done = ckpt("gptq", path, base, "--out", out, "--python", python, "--json", *options)
    return Run(base, path, out, folder / "out.gptq", done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def good(qwen_moe_f32_base: Path, other_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The published build of the small model, with the comparison."""
    options = ("--compare-rtn", "--keep-work")
    recipe = {"profile": "body-int4-g128", "int8_head": {}}
    return run(qwen_moe_f32_base, tmp_path_factory.mktemp("good"), other_python, *options, **recipe)


@pytest.fixture(scope="module")
def bad(qwen_moe_base: Path, other_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Too little text for Hessians that can be inverted, experts that see none of it, and memory for single blocks."""
    experts = r"re:.*layers\.[01]\.mlp\.experts\.\d+\.(gate|up|down)_proj$"
    gptq = {"groups": [{"targets": [experts], "bits": 4, "group_size": 128}]}
    gptq |= {"dampening": 1e-12, "calibrate_all_experts": False, "memory": "3M"}
    calibration = {"sequences": 1, "min_tokens": 8, "max_tokens": 8, "sources": [{"file": "talk.txt", "share": 1}]}
    return run(qwen_moe_base, tmp_path_factory.mktemp("bad"), other_python, gptq=gptq, calibration=calibration)


def errors(folder: Path, base: Path) -> set[tuple[str, str]]:
    report = verify(survey(folder), base=base, level="full")
    return {(finding.rule, finding.place) for finding in report.findings}


def test_a_build_ends_well(good: Run) -> None:
    assert good.code == 0, good.stderr
    assert good.document["verify"]["counts"] == {"error": 0, "warning": 0, "note": 0}
    assert good.document["verify"]["level"] == "full"


def test_the_result_is_sound_by_every_rule_and_its_profile(good: Run) -> None:
    report = verify(survey(good.out), base=good.base, level="full", schema="body-int4-g128")
    assert [str(finding) for finding in report.findings] == []


def test_the_manifest_says_what_was_calibrated_and_how(good: Run) -> None:
    manifest, tensors = read_manifest(good.out), open_checkpoint(good.out).tensors
    assert manifest is not None
    assert manifest.document["operations"][0]["operation"] == "gptq"
    told, statistics = manifest.document["operations"][0]["parameters"], good.document["gptq"]
    assert told["settings"] == statistics["settings"]
    assert told["packages"] == statistics["environment"]["packages"]
    assert told["calibration"]["sha256"] == statistics["calibration"]["sha256"]
    assert manifest.run["command"] == ["ckpt", "gptq", good.recipe.name, good.base.name]
    assert str(good.out.parent) not in manifest.text

    def first(name: str) -> tuple[str, str | None, str]:
        origin = traced(manifest, tensors[name])[0]
        return origin.how, origin.operation, origin.place

    layer = "model.language_model.layers.0"
    assert first(f"{layer}.mlp.experts.3.up_proj.weight_packed") == ("calibrated", "gptq", "export")
    assert first("lm_head.weight_packed") == ("recomputed", "int8-head", "export")
    assert first("mtp.fc.weight") == ("kept", "graft-mtp", good.base.name)
    assert first(f"{layer}.input_layernorm.weight") == ("kept", "restore-dense", good.base.name)
    assert differences(manifest, good.out).problems == ()


def test_the_raw_export_has_the_known_damages_and_no_other(good: Run) -> None:
    found = errors(good.work / "export", good.base)
    subjects = {rule for rule, _ in found}
    assert subjects == {"F10", "F11", "F13", "I03", "N06", "X04", "X05", "X07", "X09"}
    altered = next(place for rule, place in found if rule == "N06")
    assert "input_layernorm.weight" in altered
    downcast = next(place for rule, place in found if rule == "I03")
    assert "linear_attn.A_log" in downcast
    raw = json.loads((good.work / "export" / "config.json").read_text())["quantization_config"]["ignore"]
    mended = json.loads((good.out / "config.json").read_text())["quantization_config"]["ignore"]
    assert len(raw) > 2 * len(mended)


def test_every_dense_tensor_is_the_bases_to_the_bit(good: Run) -> None:
    base, out = open_checkpoint(good.base), open_checkpoint(good.out)
    dense = [name for name in out.tensors if name in base.tensors]
    assert len(dense) == 71 + 41
    assert [name for name in dense if raw_bytes(base, name) != raw_bytes(out, name)] == []
    assert {name for name in base.tensors if name.startswith("mtp.")} <= set(dense)


def raw_bytes(checkpoint: Any, name: str) -> tuple[str, bytes]:
    ref = checkpoint.tensors[name]
    with ref.path.open("rb") as file:
        file.seek(ref.offset)
        return ref.dtype, file.read(ref.nbytes)


def test_what_was_recorded_lies_beside_the_result(good: Run) -> None:
    document = json.loads(good.out.with_name("out.gptq.json").read_text())
    assert document == good.document["gptq"]
    assert validate(document, "gptq_statistics") == []
    handed = build(good.recipe, good.base)
    assert document["modules"].keys() == {module.name for module in handed.modules}
    assert document["hessian_bytes"] == handed.targets.hessian_bytes
    assert document["rtn_fallbacks"] == []
    assert document["calibration"]["sha256"] == read_set(good.work / "calibration.safetensors").sha256


def test_the_recorded_error_is_that_of_the_outputs_on_the_calibration_rows(good: Run) -> None:
    """For the first projection, whose inputs can be computed by hand: embedding, then the offset RMSNorm."""
    base = {
        name: tensor for shard in sorted(good.base.glob("*.safetensors")) for name, tensor in load_file(shard).items()
    }
    prefix, module = "model.language_model.", "model.language_model.layers.0.linear_attn.in_proj_qkv"
    ids = [token for row in read_set(good.work / "calibration.safetensors").sequences for token in row]
    hidden = base[f"{prefix}embed_tokens.weight"][ids].float()
    norm = base[f"{prefix}layers.0.input_layernorm.weight"].float()
    inputs = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6) * (1 + norm)
    weight = base[f"{module}.weight"].float()
    wrong = inputs @ (unpacked(good.work / "export", module) - weight).T
    expected = float(wrong.norm() / (inputs @ weight.T).norm())
    assert good.document["gptq"]["modules"][module]["error"] == pytest.approx(expected, rel=0.05)


def unpacked(folder: Path, module: str) -> torch.Tensor:
    from compressed_tensors.compressors import unpack_from_int32

    state = {
        name: tensor for shard in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(shard).items()
    }
    rows, columns = state[f"{module}.weight_shape"].tolist()
    codes = unpack_from_int32(state[f"{module}.weight_packed"], 4, torch.Size([rows, columns])).float()
    return codes * state[f"{module}.weight_scale"].float().repeat_interleave(128, dim=1)


def test_the_comparison_covers_every_module(good: Run) -> None:
    found = good.document["gptq"]["comparison"]
    assert found["sequences"] == 2
    assert found["all"]["count"] == 121
    first = found["modules"]["model.language_model.layers.0.linear_attn.in_proj_qkv"]
    assert 0 < first["gptq"] < first["rtn"]


def test_uncalibrated_modules_and_fallbacks_are_refused_by_name(bad: Run) -> None:
    assert bad.code == 3, bad.stderr
    assert bad.document["error"] == "the export is not what was asked for, and is kept"
    codes = {problem["code"] for problem in bad.document["problems"]}
    assert codes == {"uncalibrated", "rtn-fallback"}
    assert all(".mlp.experts." in one["tensor"] for one in bad.document["problems"] if one["code"] == "uncalibrated")
    assert not bad.out.exists()


def test_experts_that_saw_no_token_are_zero_in_the_raw_export(bad: Run) -> None:
    """What llm-compressor says nothing about."""
    record = json.loads((bad.work / "result.json").read_text())["modules"]
    unseen = next(name for name, one in record.items() if one["dead"] == one["columns"])
    assert not unpacked(bad.work / "export", unseen).any()


def test_hessians_of_single_blocks_stay_within_what_was_computed(bad: Run) -> None:
    handed = build(bad.recipe, bad.base)
    assert handed.targets.hessian_bytes is not None
    assert handed.targets.together > 1
    measured = json.loads((bad.work / "result.json").read_text())["hessian_bytes"]
    assert measured <= handed.targets.hessian_bytes <= 3 << 20


def test_the_same_command_goes_on_from_the_kept_export(bad: Run, other_python: Path) -> None:
    log = (bad.work / "gptq.log").read_bytes()
    done = ckpt(
        "gptq", bad.recipe, bad.base, "--out", bad.out, "--python", other_python, "--json", "--allow-rtn-fallbacks"
    )
    assert done.returncode == 3
    assert {problem["code"] for problem in json.loads(done.stdout)["problems"]} == {"uncalibrated"}
    assert (bad.work / "gptq.log").read_bytes() == log


def test_the_python_that_is_shown_makes_the_same_export(good: Run, tmp_path: Path) -> None:
    shown = ckpt("gptq", good.recipe, good.base, "--dry-run", "--json")
    (tmp_path / "program.py").write_text(json.loads(shown.stdout)["python"])
    shutil.copy(good.work / "calibration.safetensors", tmp_path)
    quick = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, check=False, env=quick
    )
    assert done.returncode == 0, done.stderr
    mine, theirs = open_checkpoint(tmp_path / "EXPORT"), open_checkpoint(good.work / "export")
    assert mine.config == theirs.config
    assert [name for name in theirs.tensors if raw_bytes(mine, name) != raw_bytes(theirs, name)] == []


def test_fixup_alone_mends_the_raw_export(good: Run, tmp_path: Path) -> None:
    done = ckpt("fixup", good.work / "export", "--base", good.base, "--int8-head", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    mine, theirs = open_checkpoint(tmp_path / "out"), open_checkpoint(good.out)
    assert mine.config == theirs.config
    assert [name for name in theirs.tensors if raw_bytes(mine, name) != raw_bytes(theirs, name)] == []


def test_an_export_can_be_compared_afterwards(good: Run, other_python: Path) -> None:
    """The calibration set is made anew, and so the numbers are the same."""
    done = ckpt("gptq", good.recipe, good.base, "--compare-existing", good.out, "--python", other_python, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == good.document["gptq"]["comparison"]


def test_a_dry_run_writes_nothing_and_says_what_would_be_done(good: Run, tmp_path: Path) -> None:
    done = ckpt("gptq", good.recipe, good.base, "--dry-run", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert re.search(r"mlp\.experts\.\{0-7\}\.down_proj +256 x 256 +INT4 g128 +262 kB +32\n", done.stdout)
    assert "Hessians at a time: at most 8.65 MB; gptq.memory allows 17.2 GB\n" in done.stdout
    assert "384 tokens do not determine the Hessian of a module of 512 columns" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --out DIR"),
        (["--out", "x", "--compare-existing", "y"], "--compare-existing writes nothing"),
        (["--dry-run", "--compare-existing", "y"], "--compare-existing writes nothing"),
        (["--out", "x", "--python", "no-such-python"], "does not exist"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(words: list[str], said: str, tmp_path: Path) -> None:
    done = ckpt("gptq", write_recipe(tmp_path / "recipe"), tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_recipe_without_calibration_and_one_without_base_are_wrong_usage(tmp_path: Path) -> None:
    assert "is not calibrated; give it to ckpt run" in ckpt("gptq", "body-int4-g128", tmp_path, "--dry-run").stderr
    assert "names no base" in ckpt("gptq", write_recipe(tmp_path), "--dry-run").stderr


def test_a_refusal_before_the_run_leaves_no_working_folder(good: Run, tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "recipe", gptq={"actorder": "group", "memory": 10})
    done = ckpt("gptq", path, good.base, "--out", tmp_path / "out", "--json")
    assert done.returncode == 3
    assert {problem["code"] for problem in json.loads(done.stdout)["problems"]} == {
        "actorder-unsupported",
        "hessian-memory",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]
