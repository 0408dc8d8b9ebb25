"""What may leave the machine, and what may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import LLAMA, dense_llama, edit_json, llama_entries, packed_llama, without, write_checkpoint

import verify as public
from checkpoint import UnreadableCheckpoint
from verify import BadWaiver, Waiver, gate

INDEX = "model.safetensors.index.json"


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    """A warning (F10), nothing else."""
    folder = dense_llama(tmp_path / "warned")
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """An error (I01) and a warning (F10)."""
    folder = write_checkpoint(tmp_path / "broken", without(llama_entries(), "model.norm.weight"), LLAMA)
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    return folder


def test_a_sound_checkpoint_passes(tmp_path: Path) -> None:
    result = gate(packed_llama(tmp_path))
    assert result.allowed
    assert (result.blocking, result.waived, result.report.findings) == ((), (), ())


def test_an_error_forbids_and_says_which(broken: Path) -> None:
    result = gate(broken)
    assert not result.allowed
    assert [finding.rule for finding in result.blocking] == ["I01"]
    assert [finding.rule for finding in result.report.findings] == ["I01", "F10"]


def test_a_warning_forbids_only_if_strict(warned: Path) -> None:
    assert gate(warned).allowed
    strict = gate(warned, strict=True)
    assert [finding.rule for finding in strict.blocking] == ["F10"]


@pytest.mark.parametrize(
    "waiver, allowed",
    [("I01", True), ("I01:model.norm.weight", True), ("I01:model.*", True), ("I01:norm", False), ("F10", False)],
)
def test_a_waiver_is_for_one_rule_and_maybe_one_place(broken: Path, waiver: str, allowed: bool) -> None:
    result = gate(broken, waivers=[waiver])
    assert result.allowed == allowed
    assert [finding.rule for finding in result.waived] == (["I01"] if allowed else [])


@pytest.mark.parametrize("waiver", ["", "I", "I1", "I99", "i01", "I01:", "*", "I01 "])
def test_a_waiver_that_names_no_rule_is_refused(broken: Path, waiver: str) -> None:
    with pytest.raises(BadWaiver, match="names no rule"):
        gate(broken, waivers=["F10", waiver])


def test_what_cannot_be_read_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint):
        gate(tmp_path)


def test_the_gate_reads_headers_unless_told_otherwise(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    assert gate(folder).report.level == "headers"
    assert not any(rule.startswith("N") for rule in gate(folder).report.rules)
    deep = gate(folder, level="full", base=folder, engines=["vllm@0.24"])
    assert (deep.report.level, deep.report.engines, deep.report.base) == ("full", ("vllm@0.24",), str(folder))
    assert "N06" in deep.report.rules


def test_the_gate_asks_for_a_layout_where_it_is_given_one(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    result = gate(folder, schema="experts-int4-g32")
    assert {finding.rule for finding in result.blocking} == {"S01"}


def test_a_waiver_is_unused_where_its_rule_found_nothing_there(broken: Path) -> None:
    result = gate(broken, waivers=["I01", "F10", "I01:lm_head.weight", "X05"])
    assert [str(waiver) for waiver in result.unused] == ["I01:lm_head.weight", "X05"]


def test_the_report_of_the_gate_passes_where_the_gate_does(broken: Path) -> None:
    assert not gate(broken).report.ok()
    report = gate(broken, waivers=[Waiver("I01", None, "known")]).report
    assert report.ok()
    assert report.counts["error"] == 1


def test_the_gate_is_public() -> None:
    assert {"gate", "GateResult", "BadWaiver", "Waiver", "load_waivers"} <= set(public.__all__)
