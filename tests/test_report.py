"""The report as text, as a document and as an exit code, and which rules run when."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, dense_llama, edit_json, found, llama_entries, packed_llama, without, write_checkpoint
from damaged import exported, reference_error
from hostile import FORBIDDEN, forged, hostile_checkpoint
from rich.console import Console

from checkpoint import UnreadableCheckpoint
from schemas import validate
from verify import RULES, Finding, Report, load_rules, verify
from verify.registry import rule
from verify.reports.terminal import print_lines
from verify.reports.text import full

ROOT = Path(__file__).parents[1]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """One error (a norm is missing) and one warning (the total is wrong)."""
    folder = write_checkpoint(tmp_path / "faulty", without(llama_entries(), "model.norm.weight"), LLAMA)
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    return folder


def test_a_finding_is_one_line_under_its_subject() -> None:
    finding = Finding("F07", "error", "a.b", "is not there", "it fails", ("vllm", "sglang"), "ckpt graft", 3)
    heading, line, *_ = Report("x", (finding,)).lines()
    assert heading == "files and index"
    assert line == "  E F07 a.b: is not there (3 of them) — it fails [vllm sglang]"
    assert list(Report("x", (Finding("F10", "warning", "a", "b"),)).lines())[1] == "  W F10 a: b"


def test_the_subject_with_the_worst_comes_first() -> None:
    findings = (
        Finding("X05", "error", "a", "b"),
        Finding("F10", "warning", "c", "d"),
        Finding("X06", "note", "e", "f"),
    )
    lines = list(Report("x", findings).lines())
    assert lines[:5] == ["config and side files", "  E X05 a: b", "  N X06 e: f", "files and index", "  W F10 c: d"]


def test_brief_fits_one_screen_and_verbose_says_all() -> None:
    names = ", ".join(f"layer.{number}.up_proj" for number in range(0, 60, 2))
    findings = tuple(Finding("I01", "error", names, f"missing, way {number}", count=30) for number in range(40))
    report = Report("x", findings)
    assert len(list(report.lines())) < 24
    assert any("and 28 more: missing, way 0 (30 of them)" in line for line in report.lines())
    assert "  and 32 errors; all of them with -v" in list(report.lines())
    everything = [line.plain for line in full(report)]
    assert sum("layer.58.up_proj" in line for line in everything) == 40
    assert any("way 39" in line for line in everything)


def test_verbose_gives_consequence_evidence_engines_and_remedy() -> None:
    load_rules()
    finding = Finding("M01", "error", "mtp.*", "not stored", "0 %", ("vllm",), "ckpt graft-mtp SRC --base BASE")
    lines = [
        line.plain.split(None, 1)[1] for line in full(Report("my export", (finding,), base="/base")) if line.indent
    ]
    title, *rows = lines
    assert title == "M01 the MTP head is there and complete if the config declares one"
    assert rows[:4] == ["mtp.*", "not stored", "0 %", "vllm"]
    assert rows[4].startswith("z-lab/paroquant#47")
    assert rows[5] == "ckpt graft-mtp 'my export' --base /base"


def test_remedies_can_be_typed_and_each_is_said_once() -> None:
    remedy = "ckpt restore-files SRC --base BASE"
    findings = tuple(Finding(rule_id, "error", "a", "b", remedy=remedy) for rule_id in ("X05", "X06", "X05"))
    lines = list(Report("SRC BASE", findings, base="/b c").lines())
    assert "  ckpt restore-files 'SRC BASE' --base '/b c'  (X05 X06)" in lines
    assert not any(line.count("ckpt restore-files") > 1 for line in lines)


def test_names_cannot_drive_the_terminal_or_forge_a_line(tmp_path: Path) -> None:
    for report in (verify(hostile_checkpoint(tmp_path / "a")), verify(forged(tmp_path / "b"))):
        for lines in (report.lines(), (line.plain for line in full(report))):
            text = "\n".join(lines)
            assert not set(text) & set(FORBIDDEN)
            assert not any(line.strip().startswith("E F01 forged") for line in text.splitlines())
            assert r"\x1b[2J\x07" in text


def test_names_are_no_rich_markup_and_lines_are_wrapped(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system="standard")
    report = verify(hostile_checkpoint(tmp_path / "a"))
    print_lines(full(report), console)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert "\x1b[1;31mE I11\x1b[0m" in screen.getvalue()
    assert not set(shown) & set(FORBIDDEN)
    assert "[bold red]x[/]" in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_errors_come_first(faulty: Path) -> None:
    report = verify(faulty)
    assert [finding.severity for finding in report.findings] == ["error", "warning"]
    assert report.counts == {"error": 1, "warning": 1, "note": 0}


def test_strict_turns_warnings_into_failures() -> None:
    warning = Report("x", (Finding("F10", "warning", "a", "b"),))
    assert warning.ok()
    assert not warning.ok(strict=True)
    assert Report("x", (Finding("X04", "note", "a", "b"),)).ok(strict=True)


def test_numbers_are_reported_where_asked_for(tmp_path: Path, qwen_moe_base: Path) -> None:
    export = exported(qwen_moe_base, tmp_path / "export")
    report = verify(export, base=qwen_moe_base, level="sample", measure=True)
    assert verify(export, base=qwen_moe_base, level="sample").measurements == ()
    document = json.loads(json.dumps(report.document()))
    assert validate(document, "report") == []
    errors = {one["module"]: one["error"] for one in document["measurements"]}
    assert len(errors) > 8
    module = "mtp.layers.0.mlp.experts.0.down_proj"
    assert errors[module] == pytest.approx(reference_error(export, qwen_moe_base, module), rel=1e-5)


def test_round_to_nearest_stays_within_half_a_step(tmp_path: Path, qwen_moe_base: Path) -> None:
    """Half a step and, since scales are rounded to BF16 and the ends of the grid are cut, a little beyond."""
    export = exported(qwen_moe_base, tmp_path / "export")
    report = verify(export, base=qwen_moe_base, level="full", measure=True, only=["N04"])
    steps = [sum(column) for column in zip(*(one.steps for one in report.measurements), strict=True)]
    assert sum(steps) == 120 * 256 * 256
    width = 4 / len(steps)
    inside = sum(count for number, count in enumerate(steps) if abs((number + 0.5) * width - 2) < 0.5)
    assert inside / sum(steps) > 0.98
    assert all(0.03 < one.saturation < 0.08 for one in report.measurements)


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
    lines = text.stdout.splitlines()
    assert lines[0] == "inventory"
    assert lines[1].startswith("  E I01 model.norm.weight: missing; config.json calls for it — ")
    assert lines[-1].startswith("1 error, 1 warning: ")
    assert "evidence " in ckpt(faulty, "-v").stdout
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
