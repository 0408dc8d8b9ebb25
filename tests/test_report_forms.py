"""The report as JUnit XML, as a file, by explanation; what each option of `ckpt verify` writes where."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from building import dense_llama, edit_json
from hostile import FORBIDDEN, forged, hostile_checkpoint
from junitparser import JUnitXml
from xmlschema import XMLSchema

from checkpoint import survey
from schemas import validate
from verify import Finding, Report, load_rules, verify
from verify.reports import FORMS, render

ROOT = Path(__file__).parents[1]
XSD = XMLSchema(Path(__file__).parent / "data" / "junit-10.xsd")
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return dense_llama(tmp_path / "sound")


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    folder = dense_llama(tmp_path / "warned")
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    return folder


def ckpt(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "verify", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def junit(folder: Path, *, strict: bool = False) -> JUnitXml:
    """The report as a consumer of JUnit reads it, after Jenkins' own schema."""
    checkpoint = survey(folder)
    text = render(verify(checkpoint), "junit", checkpoint, strict=strict)
    XSD.validate(text)
    return JUnitXml.fromstring(text.encode())


def test_junit_has_a_case_for_each_rule_that_ran_and_for_what_was_not_judged(sound: Path) -> None:
    report = verify(sound)
    (suite,) = junit(sound)
    assert (suite.tests, suite.failures, suite.skipped) == (len(report.rules) + 1, 0, 1)
    names = [case.name.split()[0] for case in suite if not case.is_skipped]
    assert names == list(report.rules)
    (skipped,) = [case for case in suite if case.is_skipped]
    assert (skipped.name, skipped.result[0].message) == ("what changed since the base", "no base was given")


def test_junit_fails_for_errors_and_for_warnings_only_if_strict(warned: Path) -> None:
    (lenient,), (strict,) = junit(warned), junit(warned, strict=True)
    assert (lenient.failures, strict.failures) == (0, 1)
    (told,) = [case for case in lenient if case.system_out]
    assert told.name.startswith("F10 ")
    (failed,) = [case for case in strict if case.is_failure]
    assert failed.classname == "ckpt.files and index"
    assert failed.result[0].type == "warning"
    assert "total_size 1" in failed.result[0].message


def test_junit_of_hostile_names_is_wellformed_and_harmless(tmp_path: Path) -> None:
    for folder in (hostile_checkpoint(tmp_path / "a"), forged(tmp_path / "b")):
        checkpoint = survey(folder)
        text = render(verify(checkpoint), "junit", checkpoint)
        XSD.validate(text)
        assert not set(text) & set(FORBIDDEN)
        tags = {element.tag for element in ElementTree.fromstring(text).iter()}
        assert tags <= {"testsuites", "testsuite", "testcase", "failure", "skipped", "system-out"}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_escapes_hostile_names(form: str, tmp_path: Path) -> None:
    for folder in (hostile_checkpoint(tmp_path / "a"), forged(tmp_path / "b")):
        checkpoint = survey(folder)
        assert not set(render(verify(checkpoint), form, checkpoint)) & set(FORBIDDEN)  # type: ignore[arg-type]


def test_a_report_in_a_file_leaves_stdout_alone(warned: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    run = ckpt(warned, "--format", "json", "--output", target)
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr.startswith("1 warning: ")
    assert validate(json.loads(target.read_text()), "report") == []
    assert ckpt(warned, "--output", target, "--quiet").stderr == ""
    assert target.read_text().startswith("files and index\n  W F10 ")


def test_a_report_file_is_replaced_whole_with_the_usual_mode(sound: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "out" / "report.txt", tmp_path / "other"
    target.parent.mkdir()
    other.write_text("kept")
    os.link(other, target)
    assert ckpt(sound, "--output", target).returncode == 0
    assert other.read_text() == "kept"
    assert target.read_text().endswith(" tensors\n")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert [path.name for path in target.parent.iterdir()] == ["report.txt"]


def test_a_report_that_cannot_be_written_is_no_success(sound: Path, tmp_path: Path) -> None:
    run = ckpt(sound, "--output", tmp_path / "no such folder" / "report.txt")
    assert run.returncode == 3
    assert "no such folder" in run.stderr
    assert "Traceback" not in run.stderr


def test_explain_tells_of_one_rule_without_a_checkpoint() -> None:
    run = ckpt("--explain", "M01")
    assert run.returncode == 0
    title, *rows = run.stdout.splitlines()
    assert title == "M01 the MTP head is there and complete if the config declares one"
    told = {row.split()[0]: row.split(None, 1)[1] for row in rows}
    assert told["severity"] == "error"
    assert told["engines"] == "vllm sglang"
    assert told["evidence"].startswith("z-lab/paroquant#47")
    assert "ckpt graft-mtp SRC --base BASE" in told["mend"]


def test_explain_lists_the_rules_of_a_letter_and_refuses_others() -> None:
    lines = ckpt("--explain", "M").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert len(lines) > 4
    assert ckpt("--explain", "Q9").returncode == 2
    assert ckpt("--explain", "").returncode == 2


def test_every_rule_explains_itself() -> None:
    from verify import RULES
    from verify.reports.text import explanation

    load_rules()
    for rule_id in RULES:
        assert len(list(explanation(rule_id))) >= 4


def test_wrong_use_is_told(sound: Path, tmp_path: Path) -> None:
    assert "Missing argument 'SRC'" in ckpt().stderr
    for arguments, said in (
        ([sound, "--only", "Q"], "no rule is or begins with 'Q'"),
        ([sound, "--out", tmp_path / "x"], "--output FILE"),
        ([sound, "--fix", "--out", tmp_path / "x", "--in-place"], "exclude each other"),
    ):
        run = ckpt(*arguments)
        assert (run.returncode, run.stdout) == (2, "")
        assert said in run.stderr


def test_a_fabricated_rule_is_reported_all_the_same(sound: Path) -> None:
    """Rules of a user's own may be gone from the registry by the time a report is written."""
    report = Report("x", (Finding("Z99", "note", "a", "b"),), rules=("Z99",))
    checkpoint = survey(sound)
    for form in FORMS:
        assert "Z99" in render(report, form, checkpoint)


def test_help_and_header_level_load_no_terminal_library(sound: Path) -> None:
    code = (
        "import sys; from ckpt.__main__ import main\n"
        f"sys.argv = ['ckpt', 'verify', {str(sound)!r}]\n"
        "try: main()\n"
        "finally: print(sorted(set(sys.modules) & {'rich', 'numpy', 'torch', 'surgery'}), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stderr.strip() == "[]"
