"""What a card says of engines: the releases that this layout needs, what does not work, and commands that do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import LLAMA, changed, llama_entries, pack, packed_llama, quantization, without, write_checkpoint
from carding import experts, fences_of, packed_head, rows_of, section_of, written

from cards.engines import DATA, advice
from cards.markdown import REPORTS
from verify.engines import engine_names, load_engine

MTP = [name for name in qwen.entries() if name.startswith("mtp.")]
SPECULATIVE = ("--speculative-config", "NEXTN")


def least(section: str) -> dict[str, str]:
    """Engine -> the release it must have at least."""
    return {row[0]: row[1] for row in rows_of(section, "Engines")[1:] if row[0]}


def commands(section: str) -> list[str]:
    return [fence for fence in fences_of(section) if "serve" in fence or "launch_server" in fence]


def test_packed_experts_need_what_knows_the_model_and_merges_them(tmp_path: Path) -> None:
    found = least(section_of(experts(tmp_path / "model")))
    assert found == {"vLLM": "0.17.0", "SGLang": "not known", "transformers": "5.13.1"}


def test_a_packed_head_needs_later_releases(tmp_path: Path) -> None:
    found = least(section_of(packed_head(tmp_path / "model")))
    assert found == {"vLLM": "0.20.0", "SGLang": "0.5.19", "transformers": "5.13.1"}


def test_the_releases_are_those_of_the_engines_own_files(tmp_path: Path) -> None:
    changes = json.loads((DATA.parents[1] / "verify/engines/vllm.json").read_text())["changes"]
    assert least(section_of(packed_head(tmp_path / "model")))["vLLM"] == changes["packed_head"]["since"]


@pytest.mark.parametrize(
    ("fact", "engine", "release"),
    [
        ("family:qwen3_5_moe", "vllm", "0.17.0"),
        ("config:dtype_fields", "vllm", "0.14.0"),
        ("packed:head", "vllm", "0.20.0"),
        ("packed:off_tile", "vllm", "0.24.0"),
        ("packed:odd_bits", "vllm", "0.26.0"),
        ("class:Qwen3_5MoeForCausalLM", "vllm", "0.27.0"),
        ("packed:head", "sglang", "0.5.19"),
        ("finding:M04", "sglang", "0.5.21"),
        ("family:qwen3_5_moe", "transformers", "5.2.0"),
        ("packed:experts", "transformers", "5.13.1"),
        ("packed:head", "transformers", "5.13.0"),
    ],
)
def test_a_feature_needs_its_release_and_without_it_none(fact: str, engine: str, release: str) -> None:
    with_it = next(one for one in advice({fact}, "a/b") if one.name == engine)
    assert [need.since for need in with_it.needs] == [release]
    assert not next(one for one in advice(set(), "a/b") if one.name == engine).needs


def test_every_need_of_the_data_is_in_the_table_above() -> None:
    cases = test_a_feature_needs_its_release_and_without_it_none.pytestmark[0].args[1]  # type: ignore[attr-defined]
    engines = json.loads(DATA.read_text())["engines"]
    assert {(fact, name) for name, one in engines.items() for need in one["needs"] for fact in need["when"]} == {
        (fact, engine) for fact, engine, _ in cases
    }


def test_only_the_latest_of_several_needs_is_told() -> None:
    found = next(one for one in advice({"packed:head", "packed:off_tile", "config:dtype_fields"}, "a/b"))
    assert [(need.since, need.evidence) for need in found.needs] == [("0.24.0", ("vllm#57792",))]


def test_releases_are_compared_as_numbers() -> None:
    found = next(one for one in advice({"packed:experts", "family:qwen3_5_moe"}, "a/b") if one.name == "transformers")
    assert [need.since for need in found.needs] == ["5.13.1"]  # not 5.2.0


def test_the_data_know_the_engines_that_verify_knows() -> None:
    engines = json.loads(DATA.read_text())["engines"]
    assert sorted(engines) == sorted(engine_names())
    for name, one in engines.items():
        assert {need["change"] for need in one["needs"] if "change" in need} <= set(load_engine(name).changes)


def test_every_report_can_be_linked() -> None:
    evidence = [
        one for name in ("parts", "engines") for one in cited(json.loads(DATA.with_name(f"{name}.json").read_text()))
    ]
    assert evidence
    assert {one.partition("#")[0] for one in evidence} <= set(REPORTS)


def cited(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value.get("evidence", []), *(one for part in value.values() for one in cited(part))]
    return [one for part in value for one in cited(part)] if isinstance(value, list) else []


def test_commands_serve_the_repository_with_and_without_the_draft_head(tmp_path: Path) -> None:
    section = section_of(experts(tmp_path / "model"), repo="me/model")
    assert commands(section) == [
        "vllm serve me/model\n",
        'vllm serve me/model \\\n  --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'\n',
        "vllm serve me/model \\\n  --model-loader-extra-config '{\"enable_weights_track\": true}'\n",
        "python3 -m sglang.launch_server --model-path me/model\n",
        "python3 -m sglang.launch_server --model-path me/model \\\n"
        "  --speculative-algorithm NEXTN --speculative-num-steps 3 \\\n"
        "  --speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n",
    ]


def test_sglang_gets_no_draft_beside_a_packed_head_and_the_card_says_why(tmp_path: Path) -> None:
    section = section_of(packed_head(tmp_path / "model"))
    assert not any("NEXTN" in command for command in commands(section))
    assert any("--speculative-config" in command for command in commands(section))
    assert "not tried, and expected to fail: speculative decoding (NEXTN) beside a packed `lm_head`" in section
    assert "SGLang: no command with the MTP head as draft, for the reason given above." in section
    assert "not tried" not in section_of(experts(tmp_path / "other"))


def test_without_an_mtp_head_nothing_speculates(tmp_path: Path) -> None:
    entries = without(pack(qwen.entries(), qwen.body_experts, 4, 32), *MTP)
    promised = section_of(written(tmp_path / "promised", entries, qwen.config(*qwen.SOUND)))
    assert not any(word in command for command in commands(promised) for word in SPECULATIVE)
    assert "vLLM: no command with the MTP head as draft, since `ckpt verify` finds errors in it (M01)." in promised
    assert commands(promised)[0] == "vllm serve OWNER/NAME\n"
    config = changed(qwen.config(*qwen.SOUND), "text_config", "mtp_num_hidden_layers", value=0)
    honest = section_of(written(tmp_path / "honest", entries, config))
    assert "MTP" not in honest.partition("### Serving")[2]


def test_an_incomplete_mtp_head_is_not_offered(tmp_path: Path) -> None:
    entries = without(pack(qwen.entries(), qwen.body_experts, 4, 32), "mtp.norm.weight")
    section = section_of(written(tmp_path / "model", entries, qwen.config(*qwen.SOUND)))
    assert not any(word in command for command in commands(section) for word in SPECULATIVE)


def test_an_engine_that_cannot_load_it_gets_no_command(tmp_path: Path) -> None:
    """Dense shared experts that `Linear` targets and nothing ignores: C07."""
    ignore = [entry for entry in qwen.SOUND if "shared" not in entry]
    entries = pack(qwen.entries(), qwen.body_experts, 4, 32)
    section = section_of(written(tmp_path / "model", entries, qwen.config(*ignore)))
    assert commands(section) == []
    assert "vLLM: no command, since `ckpt verify` finds errors for it (C07" in section
    assert "- error C07, " in section


def test_the_acceptance_test_is_for_quantized_checkpoints(tmp_path: Path) -> None:
    dense = section_of(write_checkpoint(tmp_path / "dense", llama_entries(), LLAMA))
    assert "enable_weights_track" not in dense
    assert "enable_weights_track" in section_of(packed_llama(tmp_path / "packed"))


def test_asymmetric_experts_are_said_to_be_unreadable_for_transformers() -> None:
    found = next(one for one in advice({"packed:asymmetric_experts"}, "a/b") if one.name == "transformers")
    assert any("zero points cannot be read" in note for note in found.notes)


def test_off_tile_shapes_and_odd_bits_are_found_in_linear_layers(tmp_path: Path) -> None:
    entries = llama_entries() | {"model.layers.0.mlp.up_proj.weight": ("BF16", (96, 128), None)}
    packed = pack(entries, lambda name: name == "model.layers.0.mlp.up_proj")
    ignore = ("lm_head", "re:.*self_attn.*", "re:.*layers.1.*", "re:.*(gate|down)_proj")
    folder = write_checkpoint(tmp_path / "model", packed, LLAMA | {"quantization_config": quantization(*ignore)})
    assert least(section_of(folder))["vLLM"] == "0.24.0"


def test_splitting_over_gpus_is_limited_as_verify_finds(tmp_path: Path) -> None:
    section = section_of(experts(tmp_path / "model"))
    assert "- tensor parallelism: groups divide on up to 2 ranks" in section  # 64 columns of down_proj in groups of 32


def test_the_verdict_counts_what_ran_and_nothing_else(tmp_path: Path) -> None:
    section = section_of(experts(tmp_path / "model"))
    checks = section.partition("### Checks")[2]
    assert "`ckpt verify` 9.9, headers and config only, no weights read: 0 errors and 1 warning, from " in checks
    assert "judged for vLLM 0.33.0, SGLang 0.5.23 and transformers 5.24.0." in checks
    assert "- not judged: what changed since the base (no base was given)" in checks


def test_findings_are_listed_and_those_beyond_the_first_counted(tmp_path: Path) -> None:
    folder = experts(tmp_path / "model")
    before = section_of(folder).count("- warning ")
    for number in range(13):
        (folder / f"pytorch_model-{number}.bin").write_bytes(b"x")
    checks = section_of(folder).partition("### Checks")[2]
    assert "- warning F12, `pytorch_model-0.bin`: weights in another format" in checks
    assert checks.count("- warning ") == 10
    assert f"- {13 + before - 10} further warnings" in checks
