"""What is refused before the model is loaded: each refusal firing, and all of them silent on a sound build."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from building import Entries, llama_entries, quantization
from gptq_builds import SOUND, build, dense_llama, write_recipe

from checkpoint import Problem, Refused
from surgery.gptq import Environment, Handover, environment_problems, preflight, probe
from surgery.gptq.needs import available_memory

CLASS = "Qwen3_5MoeForConditionalGeneration"


@pytest.fixture
def sound(qwen_moe_base: Path, tmp_path: Path) -> Handover:
    return build(write_recipe(tmp_path / "recipe", int8_head={}), qwen_moe_base)


def codes(problems: list[Problem]) -> list[str]:
    return [problem.code for problem in problems]


def of_base(base: Path, tmp_path: Path, **recipe: Any) -> list[str]:
    return codes(preflight(build(write_recipe(tmp_path / "recipe", **recipe), base), SOUND, None, None))


def test_a_sound_build_has_nothing_against_it(sound: Handover, tmp_path: Path) -> None:
    assert preflight(sound, SOUND, tmp_path / "out", tmp_path / "out.gptq", comparing=True) == []


def test_a_dense_llama_has_nothing_against_it(tmp_path: Path) -> None:
    assert of_base(dense_llama(tmp_path / "base"), tmp_path) == []


@pytest.mark.parametrize(
    ("gptq", "code"),
    [
        ({"groups": [{"targets": ["re:.*nothing$"], "bits": 4, "group_size": 128}]}, "target-unmatched"),
        ({"groups": [{"targets": ["Linear"], "bits": 4, "group_size": 96}]}, "group-size"),
        ({"groups": [{"targets": ["re:.*q_proj$"], "bits": 4, "group_size": 128}]}, "siblings-differ"),
        ({"groups": [{"targets": ["re:.*("], "bits": 4, "group_size": 128}]}, "pattern-invalid"),
        ({"actorder": "group"}, "actorder-unsupported"),
        ({"memory": 1000}, "hessian-memory"),
    ],
)
def test_what_the_section_asks_for_must_be_possible(gptq: dict[str, Any], code: str, tmp_path: Path) -> None:
    found = of_base(dense_llama(tmp_path / "base"), tmp_path, gptq=gptq)
    assert code in found


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base", architectures=["LlamaModel"], tie_word_embeddings=True)
    (base / "tokenizer.json").unlink()
    (base / "tokenizer_config.json").unlink()
    found = of_base(base, tmp_path, gptq={"actorder": "group"}, int8_head={})
    assert {"actorder-unsupported", "class-unfit", "tokenizer-absent", "tied"} <= set(found)


def test_a_text_that_is_not_there_is_told_with_the_rest(tmp_path: Path) -> None:
    calibration = {"sequences": 1, "min_tokens": 1, "sources": [{"file": "gone.txt", "share": 1}]}
    path = write_recipe(tmp_path / "recipe", gptq={"actorder": "group"}, calibration=calibration)
    with pytest.raises(Refused) as caught:
        build(path, dense_llama(tmp_path / "base"))
    assert codes(list(caught.value.problems)) == ["actorder-unsupported", "source-absent"]


@pytest.mark.parametrize(
    ("files", "line", "found"),
    [
        ({}, '{"messages": []}', ["template-absent"]),
        ({}, '{"text": "words"}', []),
        ({"chat_template.jinja": "{{ messages }}"}, '{"messages": []}', []),
        ({"tokenizer_config.json": '{"chat_template": "{{ messages }}"}'}, '{"messages": []}', []),
    ],
)
def test_conversations_need_a_chat_template(files: dict[str, str], line: str, found: list[str], tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base")
    for name, text in files.items():
        (base / name).write_text(text)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "talk.jsonl").write_text(line)
    calibration = {"sequences": 1, "min_tokens": 1, "sources": [{"file": "talk.jsonl", "share": 1}]}
    assert of_base(base, tmp_path, calibration=calibration) == found


def half(entries: Entries) -> Entries:
    return {name: ("F16" if "mlp" in name else dtype, shape, data) for name, (dtype, shape, data) in entries.items()}


def test_weights_in_another_precision_are_refused_and_state_is_not(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base", entries=half(llama_entries()))
    assert of_base(base, tmp_path) == ["source-dtype"] * 3


def test_f32_state_is_no_obstacle(qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    assert of_base(qwen_moe_f32_base, tmp_path, int8_head={}) == []


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base", quantization_config=quantization())
    assert "already-quantized" in of_base(base, tmp_path)


def test_a_draft_head_that_the_config_promises_must_be_there(qwen_moe_base: Path, tmp_path: Path) -> None:
    from demo.damage import drop_draft_head

    shutil.copytree(qwen_moe_base, tmp_path / "base")
    drop_draft_head(tmp_path / "base")
    assert of_base(tmp_path / "base", tmp_path) == ["mtp-absent"]


def test_a_head_that_cannot_be_packed_is_known_before(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base", tie_word_embeddings=True)
    assert of_base(base, tmp_path) == []
    assert of_base(base, tmp_path, int8_head={}) == ["tied"]


def test_a_comparison_needs_rows_that_were_held_back(sound: Handover) -> None:
    calibration = replace(sound.calibration, held_back=0)
    bare = replace(sound, calibration=calibration)
    assert codes(preflight(bare, SOUND, None, None)) == []
    assert codes(preflight(bare, SOUND, None, None, comparing=True)) == ["held-back-absent"]


def test_a_model_larger_than_memory_is_refused_unless_an_accelerator_offloads_it(sound: Handover) -> None:
    available = available_memory()
    if available is None:
        pytest.skip("the system does not say how much memory there is")
    large = replace(sound, needs=replace(sound.needs, model=2 * available))
    assert codes(preflight(large, SOUND, None, None)) == ["memory"]
    assert codes(preflight(large, None, None, None)) == ["memory"]
    card = replace(SOUND, accelerator="a card", accelerator_bytes=large.needs.hessians)
    assert codes(preflight(large, card, None, None)) == []
    small = replace(card, accelerator_bytes=large.needs.hessians - 1)
    assert codes(preflight(large, small, None, None)) == ["memory"]


def test_a_disk_without_room_is_refused(sound: Handover, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    large = replace(sound, needs=replace(sound.needs, export=free))  # fits once, not twice
    assert codes(preflight(large, SOUND, tmp_path / "out", tmp_path / "work")) == ["disk"]


def occupy(folder: Path, *files: str) -> None:
    folder.mkdir()
    for file in files:
        (folder / file).write_text("x")


@pytest.mark.parametrize(
    ("prepare", "out", "work", "found"),
    [
        (lambda folder: None, "out", "work", []),
        (lambda folder: occupy(folder / "out"), "out", "work", []),
        (lambda folder: occupy(folder / "work"), "out", "work", []),
        (lambda folder: occupy(folder / "out", "a"), "out", "work", ["target-exists"]),
        (lambda folder: occupy(folder / "work", "a"), "out", "work", ["work-taken"]),
        (lambda folder: occupy(folder / "work", "job.json"), "out", "work", ["work-differs"]),
        (lambda folder: None, "work/out", "work", ["target-in-work"]),
        (lambda folder: None, "out", "out/work", ["target-in-work"]),
        (lambda folder: None, "base/out", "work", ["target-in-source"]),
        (lambda folder: None, "out", "base/work", ["target-in-source"]),
    ],
)
def test_the_places_must_be_free(
    prepare: Callable[[Path], None], out: str, work: str, found: list[str], tmp_path: Path
) -> None:
    prepare(tmp_path)
    handed = build(write_recipe(tmp_path / "recipe"), dense_llama(tmp_path / "base"))
    assert codes(preflight(handed, SOUND, tmp_path / out, tmp_path / work)) == found


def test_the_working_folder_of_the_same_job_may_be_gone_on_from(sound: Handover, tmp_path: Path) -> None:
    occupy(tmp_path / "work")
    (tmp_path / "work" / "job.json").write_text(sound.job.text())
    assert preflight(sound, SOUND, tmp_path / "out", tmp_path / "work") == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"python": "3.10.14"}, "python-old"),
        ({"packages": {**SOUND.packages, "llmcompressor": None}}, "llmcompressor-absent"),
        ({"packages": {**SOUND.packages, "llmcompressor": "0.12.0"}}, "llmcompressor-untested"),
        ({"unmet": ("compressed-tensors==0.19.0",)}, "version"),
        ({"has_class": False}, "class-absent"),
    ],
)
def test_the_environment_must_fit(change: dict[str, Any], code: str | None) -> None:
    found = list(environment_problems(replace(SOUND, **change), CLASS))
    assert codes(found) == ([code] if code else [])


@pytest.fixture(scope="module")
def here() -> Environment:
    return probe(Path(sys.executable), CLASS)


def test_a_probe_says_what_a_python_has(here: Environment) -> None:
    assert here.executable == sys.executable
    assert here.packages == {name: version(name) for name in SOUND.packages}
    assert here.has_class
    assert list(environment_problems(here, CLASS)) == []


def test_a_probe_knows_a_class_that_is_not_there() -> None:
    assert not probe(Path(sys.executable), "NoSuchForCausalLM").has_class


@pytest.mark.parametrize("body", ["exit 5", "echo no JSON", "true"])
def test_a_python_that_is_none_is_refused(body: str, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(Refused) as caught:
        probe(script, CLASS)
    assert codes(list(caught.value.problems)) == ["python-unusable"]


def test_requirements_of_llm_compressor_are_read_from_its_own_metadata() -> None:
    from surgery.gptq.versions import _unmet

    assert _unmet({name: version(name) for name in SOUND.packages}) == []
    (unmet,) = _unmet({"compressed-tensors": "0.20.1"})
    assert unmet.startswith("compressed-tensors")
