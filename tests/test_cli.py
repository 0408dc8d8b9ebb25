"""The command line as scripts and people meet it: exit codes, modes, help, and what is said where."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import pytest

from ckpt.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
WRITING = ("quantize", "graft-mtp", "graft", "int8-head", "ignore", "restore-files", "fixup")
PRESET = ("--preset", "experts-int4-g32")


def ckpt(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **more)


@pytest.fixture(scope="module")
def export(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "experts"
    run = ckpt("quantize", qwen_moe_base, *PRESET, "--out", out)
    assert run.returncode == 0, run.stderr
    assert "120 modules to INT4 g32" in run.stdout
    assert "nothing found" in run.stdout
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    run = ckpt(command, "--help")
    assert run.returncode == 0
    assert f"  ckpt {command} " in run.stdout


def test_the_version_is_told_or_that_there_is_none(tmp_path: Path) -> None:
    try:
        expected = f"ckpt, version {version('ckpt-surgery')}\n"
    except PackageNotFoundError:
        expected = "ckpt, not installed: run from its sources\n"
    assert ckpt("--version").stdout == expected
    code = f"import sys; sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}]; "
    code += "sys.argv = ['ckpt', '--version']; from ckpt.__main__ import main; main()"
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stdout) == (0, "ckpt, not installed: run from its sources\n"), run.stderr


@pytest.mark.parametrize("command", WRITING)
def test_every_writing_command_takes_the_same_options(command: str) -> None:
    text = ckpt(command, "--help").stdout
    options = (
        "--out",
        "--in-place",
        "--dry-run",
        "--json",
        "--quiet",
        "--no-verify",
        "--workers",
        "--memory",
        "--no-hash",
    )
    assert all(option in text for option in options)


def test_help_lists_every_command_and_unknown_ones_are_guessed() -> None:
    text = ckpt("--help").stdout
    assert all(f"  {command} " in text for command in COMMANDS)
    run = ckpt("quantise", "x")
    assert run.returncode == 2
    assert "Did you mean 'quantize'?" in run.stderr


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["inspect", "/nowhere"], 3, "/nowhere: is not a folder"),
        (["inspect"], 2, "Missing argument 'SRC...'"),
        (["quantize", "{base}", *PRESET], 2, "give --out DIR for a new folder, --in-place, or --dry-run"),
        (["quantize", "{base}", *PRESET, "--out", "x", "--in-place"], 2, "exclude each other"),
        (["quantize", "{base}", "--dry-run"], 2, "give --preset NAME, or --target"),
        (["quantize", "{base}", "--preset", "int3", "--dry-run"], 2, "body-int4-g128, experts-int4-g32"),
        (["quantize", "{base}", *PRESET, "--bits", "8", "--dry-run"], 2, "--preset says what is packed"),
        (["quantize", "{base}", "--target", "re:(", "--dry-run"], 3, "is no regular expression"),
        (["quantize", "{base}", "--target", "Linear", "--group-size", "x", "--dry-run"], 2, "or channel"),
        (["quantize", "{base}", "--group", "head=3:1", "--dry-run"], 2, "not TARGET=BITS:SIZE"),
        (["int8-head", "{base}", "--dry-run"], 3, "no quantization_config"),
        (["ignore", "{base}", "add", "--dry-run"], 2, "needs at least one entry"),
        (["ignore", "{base}", "derive", "x", "--dry-run"], 2, "takes no entries"),
        (["ignore", "{base}", "show"], 3, "no quantization_config"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_wrong_use_and_bad_input_are_told_apart(
    arguments: list[str], code: int, said: str, qwen_moe_base: Path
) -> None:
    run = ckpt(*(argument.format(base=qwen_moe_base) for argument in arguments))
    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_dry_run_shows_the_plan_and_writes_nothing(qwen_moe_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ckpt("quantize", qwen_moe_base, *PRESET, "--out", out, "--dry-run")
    assert run.returncode == 0
    assert not out.exists()
    assert list(tmp_path.iterdir()) == []
    for line in ("rewritten", "360 tensors appear", "10 tensors disappear", "nothing was written"):
        assert line in run.stdout


def test_dry_run_as_json_says_all_names_and_costs(export: Path, tmp_path: Path) -> None:
    plan = json.loads(ckpt("int8-head", export, "--dry-run", "--json").stdout)
    assert sorted(plan["appearing"]) == ["lm_head.weight_packed", "lm_head.weight_scale", "lm_head.weight_shape"]
    assert plan["disappearing"] == ["lm_head.weight"]
    actions = [shard["action"] for shard in plan["shards"]]
    assert (actions.count("rewritten"), actions.count("linked")) == (1, len(actions) - 1)
    assert plan["bytes_written"] == next(s["bytes"] for s in plan["shards"] if s["action"] == "rewritten")


def test_result_as_json_carries_the_verdict(export: Path, tmp_path: Path) -> None:
    run = ckpt("int8-head", export, "--out", tmp_path / "out", "--json")
    document = json.loads(run.stdout)
    assert document["written"] == str(tmp_path / "out")
    assert document["new_errors"] == 0
    assert document["verify"]["counts"]["error"] == 0
    (shard,) = (shard["name"] for shard in document["shards"] if shard["action"] == "rewritten")
    assert document["sha256"] == {shard: hashlib.sha256((tmp_path / "out" / shard).read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    "memory, expected", [("64M", 0), ("67108864", 0), ("0.5g", 2), ("0", 2), ("1K", 3), ("2 GiB", 0)]
)
def test_memory_is_bytes_or_a_multiple_and_enough_for_a_block(export: Path, memory: str, expected: int) -> None:
    run = ckpt("int8-head", export, "--dry-run", "--memory", memory)
    assert run.returncode == expected
    assert expected == 0 or "memory" in run.stderr


@pytest.mark.parametrize("device, expected", [("cpu", 0), ("gpu", 2), ("cuda:x", 2)])
def test_a_device_is_named_as_torch_names_it(export: Path, device: str, expected: int) -> None:
    assert ckpt("int8-head", export, "--dry-run", "--device", device).returncode == expected


def test_a_gpu_that_is_not_there_is_refused_in_one_line(export: Path, tmp_path: Path) -> None:
    run = ckpt("int8-head", export, "--out", tmp_path / "out", "--device", "cuda:99")
    assert run.returncode == 3
    assert "CUDA" in run.stderr
    assert not (tmp_path / "out").exists()


def test_errors_as_json_name_each_problem(qwen_moe_base: Path) -> None:
    run = ckpt("quantize", qwen_moe_base, "--target", "nothing", "--target", "neither", "--dry-run", "--json")
    assert run.returncode == 3
    document = json.loads(run.stdout)
    assert [problem["code"] for problem in document["problems"]] == ["target-unmatched"] * 2


@pytest.fixture
def holed(qwen_moe_base: Path, tmp_path: Path) -> Path:
    """The base with NaN in two experts' projections of different shards."""
    import torch

    from checkpoint import open_checkpoint

    copy = tmp_path / "holed"
    shutil.copytree(qwen_moe_base, copy)
    tensors = open_checkpoint(copy).tensors
    nan = torch.tensor([float("nan")], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    for leaf in ("gate_up_proj", "down_proj"):
        ref = tensors[f"model.language_model.layers.1.mlp.experts.{leaf}"]
        with ref.path.open("r+b") as file:
            file.seek(ref.offset)
            file.write(nan)
    return copy


def test_nan_in_two_shards_is_told_together_and_nothing_is_left(holed: Path, tmp_path: Path) -> None:
    run = ckpt("quantize", holed, *PRESET, "--out", tmp_path / "out")
    assert run.returncode == 3
    assert run.stderr.count("holds NaN or Inf") == 2
    assert all(f"layers.1.mlp.experts.0.{leaf}" in run.stderr for leaf in ("gate_proj", "down_proj"))
    assert [path.name for path in tmp_path.iterdir()] == ["holed"]


def test_a_refused_request_tells_what_is_wrong_with_the_weights_too(holed: Path, tmp_path: Path) -> None:
    run = ckpt("quantize", holed, "--target", r"re:.*experts.*", "--target", "nothing", "--out", tmp_path / "out")
    assert run.returncode == 3
    assert "target 'nothing' selects no module" in run.stderr
    assert run.stderr.count("holds NaN or Inf") == 2
    dry = ckpt("quantize", holed, "--target", r"re:.*experts.*", "--target", "nothing", "--dry-run")
    assert "holds NaN" not in dry.stderr  # a dry run reads no weights


def test_quiet_says_nothing_and_still_writes(export: Path, tmp_path: Path) -> None:
    run = ckpt("int8-head", export, "--out", tmp_path / "out", "--quiet")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (tmp_path / "out" / "config.json").exists()


def test_a_result_with_a_new_error_exits_with_1(qwen_moe_base: Path, tmp_path: Path) -> None:
    """INT8 experts in groups are valid in the format, and vLLM refuses them (rule O01)."""
    target = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
    arguments = ("--target", target, "--bits", "8", "--group-size", "128", "--out", tmp_path / "out")
    run = ckpt("quantize", qwen_moe_base, *arguments)
    assert run.returncode == 1
    assert "O01" in run.stdout
    assert ckpt("verify", tmp_path / "out").returncode == 1
    assert ckpt("quantize", qwen_moe_base, *arguments[:-1], tmp_path / "other", "--no-verify").returncode == 0


def test_errors_that_the_source_had_are_not_counted_against_an_operation(export: Path, tmp_path: Path) -> None:
    """The export lacks its MTP head before and after; packing the head is not to blame."""
    from demo.damage import drop_draft_head

    damaged = tmp_path / "damaged"
    shutil.copytree(export, damaged)
    drop_draft_head(damaged)
    run = ckpt("int8-head", damaged, "--out", tmp_path / "out")
    assert run.returncode == 0
    assert "M01" in run.stdout


def test_ignore_show_counts_what_each_entry_covers(export: Path) -> None:
    entries = json.loads(ckpt("ignore", export, "show", "--json").stdout)["ignore"]
    assert all(entry["modules"] > 0 for entry in entries)
    assert {entry["entry"] for entry in entries} >= {"re:.*visual.*", "re:.*lm_head$"}


def test_layout_prints_a_document_that_its_schema_accepts(export: Path) -> None:
    import schemas

    document = json.loads(ckpt("layout", export, "--hashes").stdout)
    assert schemas.validate(document, "layout") == []
    assert all(len(file["sha256"]) == 64 for file in document["side_files"].values())


def test_inspect_sums_up_and_lists(export: Path) -> None:
    summary = ckpt("inspect", export).stdout
    assert "120 of " in summary
    assert "INT4 g32" in summary
    listing = ckpt("inspect", export, "--modules").stdout
    assert "model.language_model.layers.{0-3}.mlp.experts.{0-7}.gate_proj" in listing


@pytest.mark.parametrize("name", ["a\x1b[31mred", "b\u202etxt.exe", "c\nd"])
def test_hostile_names_reach_the_terminal_escaped(name: str, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    for arguments in (["inspect"], ["inspect", "--modules"], ["verify"]):
        run = ckpt(arguments[0], tmp_path, *arguments[1:])
        shown = run.stdout + run.stderr
        assert not any(character in shown for character in "\x1b\u202e")
        assert "c\nd" not in shown


def test_a_missing_extra_is_named_in_one_line(qwen_moe_base: Path, tmp_path: Path) -> None:
    """A torch that cannot be found: an empty sys.path entry order is not enough, so its finder is blocked."""
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from ckpt.__main__ import main\n"
        f"sys.argv = {['ckpt', 'quantize', str(qwen_moe_base), *PRESET, '--out', str(tmp_path / 'out')]!r}\n"
        "main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 3
    assert 'pip install "ckpt-surgery[torch]"' in run.stderr


def test_interrupted_by_sigterm_leaves_nothing(smollm2_base: Path, tmp_path: Path) -> None:
    import signal
    import time

    command = [sys.executable, "-m", "ckpt", "quantize", str(smollm2_base), "--target", "Linear", "--group-size", "64"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "out")], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    left = [path.name for path in tmp_path.iterdir()]
    if "is written, and whole" in said:  # the signal came while the result was being verified
        assert (process.returncode, left) == (130, ["out"])
    elif process.returncode == 130:
        assert "source and target are as they were" in said
        assert left == []
    else:  # it was done before the signal came
        assert (process.returncode, left) == (0, ["out"])
    assert os.path.exists(smollm2_base / "config.json")
