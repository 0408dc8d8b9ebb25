"""config.json, tokenizer, templates and processors: what an exporter may not touch, and what it may."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import dense_llama, edit_json, found, packed_llama, write_json

from demo.damage import reserialise_side_files
from verify import verify

Damage = Callable[[Path], object]


def config(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda folder: edit_json(folder / "config.json", change)


def tokenizer_config(change: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda folder: edit_json(folder / "tokenizer_config.json", change)


def rewrite(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(document, separators=(",", ":")))


def other_vocabulary(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", lambda document: document["model"].update(vocab={"b": 0}))


def drop(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


FAULTS: list[tuple[str, Damage, str, str]] = [
    ("X01", config(lambda c: c.update(dtype="float16")), "config.json: dtype", "warning"),
    ("X01", config(lambda c: c.update(torch_dtype="float32")), "config.json", "warning"),
    ("X02", config(lambda c: c.update(architectures=["LlamaModel"])), "config.json: architectures", "error"),
    ("X03", config(lambda c: c.update(rms_norm_eps=1e-6)), "config.json: rms_norm_eps", "error"),
    ("X03", config(lambda c: c.pop("bos_token_id")), "config.json: bos_token_id", "error"),
    ("X03", config(lambda c: c.update(head_dropout=0.1)), "config.json: head_dropout", "warning"),
    ("X04", other_vocabulary, "tokenizer.json", "error"),
    ("X04", drop("tokenizer.json"), "tokenizer.json", "error"),
    ("X04", rewrite, "tokenizer.json", "note"),
    ("X04", tokenizer_config(lambda c: c.update(bos_token="<s>")), "tokenizer_config.json", "warning"),
    ("X06", drop("generation_config.json"), "generation_config.json", "warning"),
    ("X08", config(lambda c: c.update(auto_map={"AutoModel": "m.M"})), "config.json: auto_map", "warning"),
    ("X08", config(lambda c: c.update(_name_or_path="/data/run7")), "config.json: _name_or_path", "warning"),
]


@pytest.mark.parametrize("rule, damage, place, severity", FAULTS)
def test_what_departs_from_the_base(tmp_path: Path, rule: str, damage: Damage, place: str, severity: str) -> None:
    base, folder = dense_llama(tmp_path / "base"), dense_llama(tmp_path / "out")
    damage(folder)
    report = verify(folder, base=base, only=[rule])
    assert [(f.rule, f.place, f.severity) for f in report.findings] == [(rule, place, severity)]


def test_a_quantized_copy_of_the_base_is_silent(tmp_path: Path) -> None:
    base = dense_llama(tmp_path / "base")
    folder = packed_llama(tmp_path / "out", transformers_version="5.17.0", use_cache=False)
    assert verify(folder, base=base, only=["X"]).findings == ()


def test_an_added_key_is_no_error(tmp_path: Path) -> None:
    base, folder = dense_llama(tmp_path / "base"), dense_llama(tmp_path / "out", mlp_bias=False)
    assert verify(folder, base=base).ok()


def test_nested_values_are_named_by_their_path(tmp_path: Path, qwen_moe_base: Path) -> None:
    folder = shutil.copytree(qwen_moe_base, tmp_path / "out")
    edit_json(folder / "config.json", lambda c: c["text_config"]["rope_parameters"].update(rope_theta=10000))
    edit_json(folder / "config.json", lambda c: c["vision_config"].update(depth=1))
    places = {(f.rule, f.place) for f in verify(folder, base=qwen_moe_base, only=["X"]).findings}
    assert places == {
        ("X03", "config.json: text_config.rope_parameters.rope_theta"),
        ("X02", "config.json: vision_config.depth"),
    }


def test_token_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path, eos_token_id=64)
    edit_json(folder / "tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"70": {"content": "<x>"}}))
    places = [(f.rule, f.place) for f in verify(folder, only=["X04"]).findings]
    assert places == [("X04", "tokenizer_config.json"), ("X04", "config.json: eos_token_id")]


def test_end_token_that_generation_does_not_know(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path)
    write_json(folder / "generation_config.json", {"eos_token_id": [3]})
    assert found(verify(folder)) == ["X06"]
    write_json(folder / "generation_config.json", {"eos_token_id": [3, 2]})
    assert verify(folder).findings == ()


def test_what_transformers_5_makes_of_the_side_files(tmp_path: Path, qwen_moe_base: Path) -> None:
    folder = shutil.copytree(qwen_moe_base, tmp_path / "out")
    assert verify(folder, base=qwen_moe_base, only=["X"]).findings == ()
    reserialise_side_files(folder)
    report = verify(folder, base=qwen_moe_base, only=["X"])
    assert sorted(found(report)) == ["X04", "X05", "X07", "X09"]
    assert {f.place for f in report.findings if f.rule == "X05"} == {
        "tokenizer_config.json: tokenizer_class",
        "tokenizer_config.json: extra_special_tokens",
    }
    assert {f.place for f in report.findings if f.rule == "X07"} == {
        "preprocessor_config.json",
        "video_preprocessor_config.json",
    }


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE.txt"])
def test_the_licence_of_the_base_goes_with_it(tmp_path: Path, name: str) -> None:
    base, folder = dense_llama(tmp_path / "base"), dense_llama(tmp_path / "out")
    (base / name).write_text("terms")
    (finding,) = verify(folder, base=base, only=["X09"]).findings
    assert (finding.place, finding.found, finding.severity) == (name, "missing; the base has it", "warning")
    (folder / name).write_text("other terms")
    assert [finding.found for finding in verify(folder, base=base, only=["X09"]).findings] == [
        "differs from the base's"
    ]
    (folder / name).write_text("terms")
    assert verify(folder, base=base, only=["X09"]).findings == ()


def test_settings_that_are_no_json(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path)
    (folder / "tokenizer_config.json").write_text("{")
    assert found(verify(folder, base=dense_llama(tmp_path / "base"), only=["X"])) == ["X04"]


def test_a_text_model_needs_no_processors(tmp_path: Path) -> None:
    assert verify(dense_llama(tmp_path), only=["X07"]).findings == ()
