"""How a checkpoint was made, as its manifest and its calibration tell: nothing is said that neither says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import packed_llama
from carding import card_of, fences_of, rows_of, section_of

from cards.made import Made, base_place
from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from checkpoint.manifest import read_manifest
from surgery import int8_head, load_preset, quantize

RUN = {"tool": {"name": "ckpt-surgery", "version": "1.2"}, "recipe": None, "inputs": [0], "operations": [0]}


def place(name: str, **more: Any) -> dict[str, Any]:
    return {"role": "source", "place": name, "revision": None, "run": None} | more


def document(**changes: Any) -> dict[str, Any]:
    told = {
        "runs": [RUN | {"command": ["ckpt", "quantize", "hf://a/b@main", "--target", "re:.*_proj$"]}],
        "inputs": [place("hf://a/b@main", revision="0" * 40)],
        "operations": [{"operation": "quantize", "parameters": {"maths": "fp32"}, "inputs": {}}],
        "files": {},
        "shards": {},
    }
    return told | changes


def test_inputs_commands_and_operations_are_told() -> None:
    assert Made(document(), None).lines() == [
        f"- from `hf://a/b@main` at `{'0' * 40}`",
        "",
        "The command of ckpt 1.2, with `--out FOLDER` besides:",
        "",
        "```sh",
        "ckpt quantize hf://a/b@main --target 're:.*_proj$'",
        "```",
        "",
        '- quantize: `{"maths": "fp32"}`',
    ]


def test_a_folder_between_two_runs_is_no_input_and_commands_are_in_order() -> None:
    runs = [RUN | {"command": ["ckpt", "quantize", "BASE"]}, RUN | {"command": ["ckpt", "int8-head", "BODY"]}]
    lines = Made(document(runs=runs, inputs=[place("BASE"), place("BODY", run=0)]), None).lines()
    assert [line for line in lines if line.startswith("- from")] == ["- from `BASE`, revision not known"]
    assert lines.index("ckpt quantize BASE") + 1 == lines.index("ckpt int8-head BODY")


def test_a_run_without_a_command_is_said() -> None:
    runs = [RUN | {"command": ["ckpt", "quantize", "BASE"]}, RUN | {"command": None}]
    assert "1 run from Python left no command; what was done is below." in Made(document(runs=runs), None).lines()


def test_long_parameters_are_cut() -> None:
    operations = [{"operation": "ignore", "parameters": {"entries": ["x" * 1000]}, "inputs": {}}]
    assert max(map(len, Made(document(operations=operations), None).lines())) < 450


@pytest.mark.parametrize(
    ("inputs", "base"),
    [
        ([place("hf://a/b@main")], "a/b"),
        ([place("hf://x/export"), place("hf://a/b", role="base")], "a/b"),
        ([place("folder")], None),
        ([place("hf://a/b", role="from")], None),
        ([place("hf://x/between", run=0), place("hf://a/b")], "a/b"),
    ],
)
def test_the_base_is_the_input_that_nothing_made(inputs: list[dict[str, Any]], base: str | None) -> None:
    assert base_place(document(inputs=inputs)) == base


def test_a_verdict_and_what_was_let_pass_are_told() -> None:
    verdict = {"level": "full", "engines": ["vllm"], "base": "hf://a/b@c", "counts": {"error": 0, "warning": 2}}
    waivers = [{"rule": "X05", "place": None, "reason": "old transformers do not matter"}]
    lines = Made(document(verdict=verdict, waivers=waivers), None).lines()
    assert "- the manifest records: `ckpt verify` at level full beside `hf://a/b@c`: 0 errors, 2 warnings" in lines
    assert "- let pass: X05: old transformers do not matter" in lines


def test_without_a_manifest_nothing_is_told_and_that_is_said(tmp_path: Path) -> None:
    card = card_of(packed_llama(tmp_path / "model"))
    assert "### How it was made" not in card.section
    assert "how it was made: there is no ckpt.manifest.json" in card.lacking


@pytest.fixture(scope="module")
def build(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The body of the small model packed, and its head after it, in two writes."""
    folder = tmp_path_factory.mktemp("made")
    preset = load_preset("experts-int4-g32")
    draft = quantize(Draft.of(open_checkpoint(qwen_moe_base)), preset.groups, ignore=preset.ignore)
    apply_plan(plan_for(draft, folder / "BODY"), folder / "BODY")
    draft = int8_head(Draft.of(open_checkpoint(folder / "BODY")))
    apply_plan(plan_for(draft, folder / "BUILD"), folder / "BUILD")
    return folder / "BUILD"


def test_a_written_manifest_is_read(build: Path) -> None:
    manifest = read_manifest(build)
    assert manifest is not None
    section = section_of(build, manifest=dict(manifest.document))
    assert "- from `qwen-moe-" in section
    assert "- quantize: " in section
    assert "- int8-head: " in section
    assert "2 runs from Python left no command" in section


def test_hashes_of_a_written_manifest_are_taken_over(build: Path) -> None:
    manifest = read_manifest(build)
    assert manifest is not None
    rows = {row[0]: row[2] for row in rows_of(section_of(build, manifest=dict(manifest.document)), "Files")[1:]}
    for name, shard in manifest.shards.items():
        assert rows[name] == shard["sha256"]
    assert "not computed" not in rows.values()
    assert "ckpt.manifest.json" not in rows


STATISTICS = {
    "title": "Full body",
    "settings": {"dampening": 0.01, "block_size": 128, "actorder": "weight"},
    "environment": {"packages": {"llmcompressor": "0.14.0.1", "torch": "2.13.0", "absent": None}},
    "calibration": {
        "sha256": "a" * 64,
        "report": {"calibration": {"sequences": 384, "tokens": 786432}},
        "record": {},
    },
    "rtn_fallbacks": [],
    "modules": {"model.layers.0.mlp.up_proj": {}},
    "comparison": {"sequences": 8, "tokens": 16384, "all": {"gptq": 0.0512, "rtn": 0.0734}},
}


def test_calibration_is_told_in_numbers() -> None:
    lines = Made(None, STATISTICS).lines()
    assert lines[0] == "Calibrated by llm-compressor's GPTQ (Full body):"
    assert "- 384 sequences, 786,432 tokens" in lines
    assert "- dampening 0.01, block size 128, actorder weight" in lines
    assert "- llmcompressor 0.14.0.1, torch 2.13.0" in lines
    assert "- 1 module, 0 of them rounded to nearest instead" in lines
    said = "- mean relative error of the outputs on 8 sequences held back: 0.0512, by round-to-nearest 0.0734"
    assert said in lines


def test_without_a_comparison_no_error_is_claimed() -> None:
    assert not any("held back" in line for line in Made(None, STATISTICS | {"comparison": None}).lines())


def test_the_statistics_are_those_that_the_schema_describes() -> None:
    from schemas import load

    required = set(load("gptq_statistics")["required"])
    assert set(STATISTICS) <= required


def test_commands_are_a_block_of_code(tmp_path: Path) -> None:
    section = section_of(packed_llama(tmp_path / "model"), manifest=json.loads(json.dumps(document())))
    assert "ckpt quantize hf://a/b@main --target 're:.*_proj$'\n" in fences_of(section)
