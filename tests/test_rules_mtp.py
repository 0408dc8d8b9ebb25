"""Rules on the MTP head: there, complete, dense, ignored under the draft's names, and in files that engines read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import Entries, found, pack, without, write_checkpoint, write_shard
from qwen import DRAFT, IGNORE, SOUND, group

from checkpoint import Checkpoint, survey
from verify.run import judge


def stored(folder: Path, change: Callable[[Entries], Entries] = dict, *also: str) -> Checkpoint:
    """Experts of the body packed, and what `also` names of the draft head, after `change`."""
    entries = pack(qwen.entries(), lambda module: qwen.body_experts(module) or (bool(also) and module.startswith(also)))
    return survey(write_checkpoint(folder, change(entries), qwen.config(*SOUND)))


def rules(checkpoint: Checkpoint, document: dict[str, Any], *engines: str, severity: str | None = None) -> list[str]:
    return found(judge(qwen.judged(checkpoint, document, *engines), only=("M", "C07", "C08", "C11", "C12")), severity)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return stored(tmp_path_factory.mktemp("sound") / "model")


@pytest.mark.parametrize("entry", ["re:^mtp.*", "re:mtp.*", "re:.*mtp.*"])
def test_dense_head_under_one_regex_passes(sound: Checkpoint, entry: str) -> None:
    assert rules(sound, qwen.config(*IGNORE, entry, "lm_head")) == []


def test_dense_head_in_per_expert_layout_passes(tmp_path: Path) -> None:
    def split(entries: Entries) -> Entries:
        parts = {f"{DRAFT}mlp.experts.{e}.down_proj.weight": ("BF16", (128, 64), None) for e in range(4)}
        for part in ("gate_proj", "up_proj"):
            parts |= {f"{DRAFT}mlp.experts.{e}.{part}.weight": ("BF16", (64, 128), None) for e in range(4)}
        return without(entries, f"{DRAFT}mlp.experts.gate_up_proj", f"{DRAFT}mlp.experts.down_proj") | parts

    assert rules(stored(tmp_path / "model", split), qwen.config(*SOUND)) == []


def test_absent_head_is_found(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "model", lambda entries: without(entries, *(n for n in entries if "mtp." in n)))
    (finding,) = judge(qwen.judged(checkpoint, qwen.config(*SOUND)), only=("M", "C12")).findings
    assert (finding.rule, finding.severity, finding.count) == ("M01", "error", 19)
    assert finding.remedy == "ckpt graft-mtp SRC --base BASE"
    assert "0 %" in finding.consequence


def test_absent_head_passes_where_none_is_declared(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "model", lambda entries: without(entries, *(n for n in entries if "mtp." in n)))
    document = qwen.config(*IGNORE, "lm_head")
    document["text_config"]["mtp_num_hidden_layers"] = 0
    assert rules(checkpoint, document) == []


def test_undeclared_head_is_a_warning(sound: Checkpoint) -> None:
    document = qwen.config(*SOUND)
    document["text_config"]["mtp_num_hidden_layers"] = 0
    assert rules(sound, document, severity="warning") == ["M01"]
    assert rules(sound, document, severity="error") == []


@pytest.mark.parametrize(
    "name", ["mtp.norm.weight", f"{DRAFT}self_attn.o_proj.weight", f"{DRAFT}mlp.experts.down_proj"]
)
def test_incomplete_head_is_found(tmp_path: Path, name: str) -> None:
    checkpoint = stored(tmp_path / "model", lambda entries: without(entries, name))
    assert rules(checkpoint, qwen.config(*SOUND), severity="error") == ["M01"]


PACKED: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (tuple(f"{DRAFT}self_attn.{part}_proj" for part in "qkvo"), ("mtp.fc", "re:mtp.*mlp.*"), "warning"),
    (("mtp.fc",), ("re:mtp.layers.*",), "error"),
]


@pytest.mark.parametrize("also, ignore, severity", PACKED, ids=["attention", "fc"])
def test_packed_parts_weigh_by_what_they_cost(
    tmp_path: Path, also: tuple[str, ...], ignore: tuple[str, ...], severity: str
) -> None:
    checkpoint = stored(tmp_path / "model", dict, *also)
    body = ("re:.*language_model.*self_attn.*", *IGNORE[1:])
    report = judge(qwen.judged(checkpoint, qwen.config(*body, *ignore, "lm_head")), only=("M", "C07", "C08"))
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("M02", severity)]


def test_packed_draft_experts_are_a_fact_not_a_finding(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "model", dict, f"{DRAFT}mlp.experts.")
    body = ("re:.*language_model.*self_attn.*", *IGNORE[1:])
    document = qwen.config(*body, "mtp.fc", "re:mtp.*self_attn.*", "lm_head")
    report = judge(qwen.judged(checkpoint, document), only=("M", "C07", "C08"))
    assert report.findings == ()
    assert [fact for fact in report.facts if "experts are packed" in fact]


def test_packed_input_layer_is_no_error_for_vllm_alone(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "model", dict, "mtp.fc")
    document = qwen.config(*IGNORE, "re:mtp.layers.*", "lm_head")
    assert rules(checkpoint, document, "vllm@0.24", severity="error") == []
    assert rules(checkpoint, document, "vllm@0.24", severity="warning") == ["M02"]


def test_packed_and_ignored_is_one_error(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "model", dict, f"{DRAFT}mlp.experts.")
    assert rules(checkpoint, qwen.config(*SOUND)) == ["C08"]


UNCOVERED: list[tuple[tuple[str, ...], str, int]] = [
    (("mtp.fc",), "'Linear'", 2),
    (("mtp",), "'mtp' is a whole name", 3),
    (("mtp.fc", f"{DRAFT}mlp.experts"), "is a whole name", 2),
    ((), "'Linear'", 3),
    ((r"re:mtp.*experts.*",), "'Linear'", 1),
]


@pytest.mark.parametrize("ignore, wording, count", UNCOVERED)
def test_dense_head_that_is_not_ignored_is_one_finding(
    sound: Checkpoint, ignore: tuple[str, ...], wording: str, count: int
) -> None:
    """vLLM 0.24.0 raised KeyError for the experts, and left mtp.fc unwritten without a word."""
    report = judge(qwen.judged(sound, qwen.config(*IGNORE, *ignore, "lm_head")), only=("M03", "C07"))
    assert [finding.rule for finding in report.findings] == ["M03"]
    (finding,) = report.findings
    assert (finding.severity, finding.count) == ("error", count)
    assert wording in finding.found
    assert "transformers" not in finding.engines
    assert finding.remedy == "ckpt ignore SRC add 're:^mtp.*'"


def test_head_that_no_target_covers_needs_no_entry(sound: Checkpoint) -> None:
    document = qwen.config(group_0=group(r"re:.*language_model.*mlp\.experts\..*"))
    assert rules(sound, document, "vllm@0.24") == []


def test_exact_entries_for_shards_are_a_warning_and_an_error_before_0_5_21(sound: Checkpoint) -> None:
    shards = [f"{DRAFT}self_attn.{part}_proj" for part in "qkvo"]
    body = ("re:.*language_model.*self_attn.*", *IGNORE[1:])
    document = qwen.config(*body, *shards, "mtp.fc", "re:mtp.*mlp.*", "lm_head")
    assert rules(sound, document, "sglang", severity="warning") == ["M04"]
    assert rules(sound, document, "sglang@0.5.20", severity="error") == ["M04"]
    assert rules(sound, document, "vllm") == []


def test_head_in_a_file_outside_the_index_is_found(tmp_path: Path) -> None:
    everything = pack(qwen.entries(), qwen.body_experts)
    draft = {name: entry for name, entry in everything.items() if name.startswith("mtp.")}
    folder = write_checkpoint(tmp_path / "model", without(everything, *draft), qwen.config(*SOUND))
    write_shard(folder / "model_mtp.safetensors", draft)
    report = judge(qwen.judged(survey(folder), qwen.config(*SOUND)), only=("M",))
    assert [(finding.rule, finding.place, finding.count) for finding in report.findings] == [
        ("M05", "model_mtp.safetensors", 19)
    ]
