"""The report as text, as a document and as an exit code, and which rules run when."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, dense_llama, edit_json, found, llama_entries, packed_llama, without, write_checkpoint

from checkpoint import UnreadableCheckpoint
from schemas import validate
from verify import RULES, Finding, Report, load_rules, verify
from verify.registry import rule

ROOT = Path(__file__).parents[1]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """One error (a norm is missing) and one warning (the total is wrong)."""
    folder = write_checkpoint(tmp_path / "faulty", without(llama_entries(), "model.norm.weight"), LLAMA)
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    return folder


def test_a_finding_is_one_line() -> None:
    finding = Finding("F07", "error", "a.b", "is not there", "it fails", ("vllm", "sglang"), "ckpt graft", 3)
    line = "E F07 a.b: is not there (3 of them) — it fails [vllm sglang] → ckpt graft"
    assert next(Report("x", (finding,)).lines()) == line
    assert next(Report("x", (Finding("F10", "warning", "a", "b"),)).lines()) == "W F10 a: b"


def test_names_cannot_drive_the_terminal() -> None:
    report = Report("x", (Finding("F15", "error", "evil\x1b[2J\u202e", "b"),))
    assert "\\x1b[2J\\u202e" in next(report.lines())


def test_errors_come_first(faulty: Path) -> None:
    report = verify(faulty)
    assert [finding.severity for finding in report.findings] == ["error", "warning"]
    assert report.counts == {"error": 1, "warning": 1, "note": 0}


def test_strict_turns_warnings_into_failures() -> None:
    warning = Report("x", (Finding("F10", "warning", "a", "b"),))
    assert warning.ok()
    assert not warning.ok(strict=True)
    assert Report("x", (Finding("X04", "note", "a", "b"),)).ok(strict=True)


def test_the_document_satisfies_its_schema(faulty: Path) -> None:
    for report in (verify(faulty), verify(faulty, base=faulty, engines=["vllm@0.24"], level="full")):
        assert validate(json.loads(json.dumps(report.document())), "report") == []
    broken = replace(verify(faulty), level="deep")  # type: ignore[arg-type]
    assert validate(broken.document(), "report") != []


def test_what_was_not_judged_is_said(tmp_path: Path) -> None:
    skipped = verify(dense_llama(tmp_path, model_type="unheard_of")).skipped
    assert skipped == {
        "which tensors are missing": "no base was given and the family of the model is unknown",
        "what changed since the base": "no base was given",
    }


@pytest.mark.parametrize(
    "change, said",
    [
        ({"quant_method": "fp8"}, "quant_method fp8"),
        ({"quant_method": "awq", "bits": 4}, "quant_method awq"),
        (
            {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}},
            "float weights",
        ),
        ({"config_groups": {"g": {"targets": ["Linear"], "input_activations": {}}}}, "quantized activations"),
    ],
)
def test_other_formats_are_checked_for_structure_only(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    folder = packed_llama(tmp_path)
    edit_json(folder / "config.json", lambda config: config["quantization_config"].update(change))
    report = verify(folder)
    assert report.findings == ()
    (reason,) = [why for what, why in report.skipped.items() if what == "modules, config groups and contents"]
    assert said in reason
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert found(verify(folder)) == ["F04"]


def test_only_keeps_rules_by_id_or_letter(faulty: Path) -> None:
    assert found(verify(faulty, only=["F10"])) == ["F10"]
    assert found(verify(faulty, only=["I"])) == ["I01"]
    assert all(rule_id.startswith("F") for rule_id in verify(faulty, only=["F"]).rules)


def test_content_rules_run_when_asked(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    assert not any(rule_id.startswith("N") for rule_id in verify(folder).rules)
    assert "N01" in verify(folder, level="sample").rules
    assert "N04" not in verify(folder, level="sample").rules
    assert "N04" in verify(folder, base=folder, level="sample").rules


def test_a_base_that_contradicts_itself_is_refused(tmp_path: Path, faulty: Path) -> None:
    base = dense_llama(tmp_path / "base")
    (base / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UnreadableCheckpoint, match="model-00002-of-00002"):
        verify(faulty, base=base)


def test_every_rule_says_what_it_is() -> None:
    load_rules()
    for one in RULES.values():
        assert one.title
        assert one.evidence
        assert one.severity in ("error", "warning", "note")


def test_an_id_is_taken_once() -> None:
    load_rules()
    with pytest.raises(ValueError, match="F10"):
        rule("F10", "again")(lambda case: ())


def test_profile_by_name_and_by_file(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path / "dense")
    assert found(verify(folder, schema="experts-int4-g32")) == ["S01"]
    (tmp_path / "mine.json").write_text(json.dumps({"properties": {"family": {"const": "llama"}}}))
    assert verify(folder, schema=str(tmp_path / "mine.json")).findings == ()
    (tmp_path / "other.json").write_text(json.dumps({"properties": {"family": {"const": "qwen3"}}}))
    (finding,) = verify(folder, schema=str(tmp_path / "other.json")).findings
    assert (finding.rule, finding.place) == ("S01", "layout: family")


def test_schemas_of_index_and_quantization_config(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_parameters=-1))
    edit_json(folder / "config.json", lambda config: config["quantization_config"].update(config_groups=[]))
    assert {"S02", "S03"} <= {*found(verify(folder, only=["S"]))}
    assert "S02" not in found(verify(packed_llama(tmp_path / "sound")))


def ckpt(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "verify", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_exit_codes(tmp_path: Path, faulty: Path) -> None:
    sound = dense_llama(tmp_path / "sound")
    assert ckpt(sound).returncode == 0
    assert ckpt(faulty).returncode == 1
    warned = dense_llama(tmp_path / "warned")
    edit_json(warned / INDEX, lambda index: index["metadata"].update(total_size=1))
    assert ckpt(warned).returncode == 0
    assert ckpt(warned, "--strict").returncode == 1
    assert ckpt(tmp_path / "nowhere").returncode == 3
    (tmp_path / "empty").mkdir()
    assert ckpt(tmp_path / "empty").returncode == 3
    assert ckpt(sound, "--schema", "no-such-profile").returncode == 3
    assert ckpt(sound, "--engine", "no-such-engine").returncode == 3
    assert ckpt(sound, "--level", "deep").returncode == 2


def test_text_and_json_on_stdout(faulty: Path) -> None:
    text = ckpt(faulty)
    assert text.stdout.splitlines()[0].startswith("E I01 model.norm.weight: missing; config.json calls for it — ")
    assert text.stdout.splitlines()[-1].startswith("1 error, 1 warning: ")
    assert text.stderr == ""
    document = json.loads(ckpt(faulty, "--format", "json").stdout)
    assert validate(document, "report") == []
    assert [finding["rule"] for finding in document["findings"]] == ["I01", "F10"]
    assert ckpt(faulty, "--quiet").stdout == ""


def test_header_level_needs_no_heavy_package(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    heavy = "{'torch', 'numpy', 'transformers', 'compressed_tensors'}"
    code = f"import sys, verify; verify.verify({str(folder)!r}); sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
