"""`ckpt inspect` and costs: one checkpoint, several side by side, as a document, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import LLAMA, llama_entries, packed_llama, write_checkpoint, write_json
from click.testing import CliRunner, Result

from ckpt.inspect import command
from schemas import validate


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small Qwen3.5-MoE, dense."""
    return write_checkpoint(tmp_path_factory.mktemp("costs") / "dense", qwen.entries(), qwen.CONFIG)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its routed experts in INT4."""
    folder = tmp_path_factory.mktemp("costs") / "experts"
    qwen.stored(folder)
    return folder


def inspect(*words: object, code: int = 0) -> Result:
    from ckpt.__main__ import cli

    run = CliRunner().invoke(cli, ["inspect", *map(str, words)])
    assert run.exit_code == code, run.output
    return run


def document(*words: object) -> dict[str, Any]:
    """What `--json` prints, which its schema accepts."""
    found: dict[str, Any] = json.loads(inspect(*words, "--json").stdout)
    assert validate(found, "costs") == []
    return found


def cells(text: str, row: str) -> list[str]:
    """The cells of the last row that begins so."""
    (*_, line) = [line for line in text.splitlines() if line.strip().startswith(row)]
    return re.split(r" {2,}", line.strip())


def test_one_checkpoint_is_shown_as_before_and_its_costs_below(export: Path) -> None:
    said = inspect(export).stdout
    assert said.index("side files:") < said.index("costs in vLLM; 1 stream, 1,024 tokens of context")
    assert "INT4 g32" in said
    assert cells(said, "routed experts")[0] == "routed experts"
    assert re.search(r"a token: [0-9.,]+ [kM]B moved, [0-9.e-]+ ms at least", said)
    assert "costs in vLLM" not in inspect(export, "--modules").stdout
    assert inspect(export, "--quiet").stdout == ""


def test_json_of_one_checkpoint_is_its_layout_and_of_its_costs_on_demand(export: Path) -> None:
    assert validate(json.loads(inspect(export, "--json").stdout), "layout") == []
    assert len(document(export, "--costs")["checkpoints"]) == 1


def test_assumptions_are_in_the_document(export: Path) -> None:
    options = "--tp 2 --context 9 --streams 3 --kv-dtype fp8 --mamba-dtype float32 --text-only --bandwidth 900GB/s"
    drafting = "--speculative 2 --acceptance 0.5"
    assert document(export, "--costs", *options.split(), *drafting.split())["assumptions"] == {
        "tp": 2,
        "context": 9,
        "streams": 3,
        "kv_dtype": "fp8",
        "state_dtype": "float32",
        "speculative": 2,
        "acceptance": 0.5,
        "text_only": True,
        "bandwidth": 900e9,
    }


def test_the_document_adds_up(export: Path) -> None:
    (one,) = document(export, "--costs", "--speculative", 1, "--acceptance", 0.5)["checkpoints"]
    parts = one["parts"].values()
    assert one["disk"] == sum(part["disk"] for part in parts)
    assert one["memory"]["weights"] + one["memory"]["mtp"] == sum(part["memory"] for part in parts)
    for step, key in (("decoding", "read"), ("speculative_decoding", "speculative_read")):
        passes = [found for found in (one[step]["body"], one[step]["drafts"]) if found]
        assert sum(found["weights"] for found in passes) == sum(part[key] for part in parts)
        assert one[step]["step_bytes"] == sum(sum(found.values()) for found in passes)
        assert one[step]["token_seconds_at_least"] == one[step]["step_bytes"] / 4.8e12 / one[step]["emitted"]


def test_several_checkpoints_stand_side_by_side(model: Path, export: Path) -> None:
    said = inspect(model, export).stdout
    assert cells(said, "A: dense") == ["A: dense", "B: experts"]
    found = document(model, export)["checkpoints"]
    moved = [f"{one['decoding']['step_bytes'] / 1e6:,.1f} MB" for one in found]
    assert cells(said, "moved a token") == ["moved a token", *moved]
    assert "quantize" not in said


def test_measured_times_are_told_with_the_bandwidth_they_imply_and_a_line(model: Path, export: Path) -> None:
    measured = ("--measured", "2ms", "--measured", "1", "--overhead", "0.5ms")
    said = inspect(model, export, *measured).stdout
    assert cells(said, "ms a token, measured") == ["ms a token, measured", "2.00", "1.00"]
    assert "two points, through which a line always goes" in said
    found = document(model, export, *measured)
    bytes_a_token = [one["decoding"]["token_bytes"] for one in found["checkpoints"]]
    assert found["measured"]["bandwidth"] == pytest.approx([bytes_a_token[0] / 2e-3, bytes_a_token[1] / 1e-3])
    line = found["measured"]["line"]
    assert line["fixed_seconds"] + bytes_a_token[0] / line["bandwidth"] == pytest.approx(2e-3)
    assert "no line goes through" in inspect(export, model, "--measured", 2, "--measured", 1).stdout
    assert "measured 3 ms: " in inspect(model, "--measured", 3).stdout


def test_an_overhead_comes_once_a_step(model: Path) -> None:
    words = (model, "--costs", "--overhead", "6ms", "--speculative", 1, "--acceptance", 0.5)
    found = re.findall(r"about ([0-9.]+) ms with the overhead", inspect(*words).stdout)
    assert [float(one) for one in found] == pytest.approx([6, 4], rel=0.01)


def test_an_unknown_family_is_named_as_not_judged(tmp_path: Path, model: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", llama_entries(), LLAMA | {"model_type": "novel"})
    assert "not judged: decoding (no family file knows this model_type)" in inspect(folder).stdout
    both = inspect(model, folder).stdout
    assert "B: not judged: decoding" in both
    assert cells(both, "moved a token")[2] == "?"
    assert document(model, folder, "--measured", 1, "--measured", 1)["measured"]["bandwidth"][1] is None


def test_ranks_and_drafts_are_said(model: Path) -> None:
    said = inspect(model, "--tp", 2, "--streams", 5, "--speculative", 1, "--acceptance", 0.8).stdout
    assert "costs in vLLM, of one of 2 ranks; 5 streams, " in said
    assert "1 drafted, 80% accepted, so 1.80 tokens a step" in said
    assert "and when drafting" in said


@pytest.mark.parametrize("words", [["--costs"], []], ids=["alone", "below"])
def test_other_formats_are_not_judged(words: list[str], tmp_path: Path) -> None:
    folder = packed_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    write_json(folder / "config.json", config)
    assert "not judged: memory in the engine (stored as quant_method fp8)" in inspect(folder, *words).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speculative", "1"], "--speculative and --acceptance go together"),
        (["--acceptance", "0.5"], "--speculative and --acceptance go together"),
        (["--measured", "1", "--measured", "2"], "2 times by --measured for 1 checkpoints"),
        (["--measured", "0"], "milliseconds, more than 0"),
        (["--overhead", "fast"], "milliseconds, as 2.4ms"),
        (["--bandwidth", "4.8"], "GB or TB a second"),
        (["--bandwidth", "0TB/s"], "GB or TB a second"),
        (["--modules", "--costs"], "--modules is for one SRC"),
        (["--json", "--streams", "5"], "--streams needs --costs"),
        (["--tp", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: list[str], said: str, model: Path) -> None:
    assert said in inspect(model, *words, code=2).output


def test_modules_are_those_of_one_checkpoint(model: Path, export: Path) -> None:
    assert "--modules is for one SRC" in inspect(model, export, "--modules", code=2).output


def test_all_that_cannot_be_read_is_told_at_once(model: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(command, [str(model), str(tmp_path / "one"), str(tmp_path / "two")])
    told = str(run.exception)
    assert str(tmp_path / "one") in told
    assert str(tmp_path / "two") in told


def test_hostile_places_and_values_reach_the_terminal_escaped(tmp_path: Path) -> None:
    config = qwen.CONFIG | {"quantization_config": {"quant_method": "a\x1b[31mred"}}
    folder = write_checkpoint(tmp_path / "a\x1b[31mred", qwen.entries(), config)
    for words in ([folder], [folder, folder]):
        assert "\x1b" not in inspect(*words).output
