"""The snippets of docs/ci.md: YAML that parses, and lines that do what the page says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from building import INDEX, dense_llama, edit_json
from hooking import ROOT, Run, run
from hub import HubServer
from jsonschema import Draft7Validator
from pre_committing import MANIFEST, program_of
from xmlschema import XMLSchema

DATA = Path(__file__).parent / "data"
PAGE = (ROOT / "docs" / "ci.md").read_text()
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
INSTALL = "pip install ckpt-surgery"


def lines_of(job: dict[str, Any]) -> Iterator[str]:
    """The shell lines of a GitHub job or of a GitLab one."""
    yield from job.get("script", [])
    yield from (step["run"] for step in job.get("steps", []) if "run" in step)


def jobs() -> Iterator[dict[str, Any]]:
    for snippet in SNIPPETS:
        yield from snippet.get("jobs", {}).values()
        yield from (value for value in snippet.values() if isinstance(value, dict) and "script" in value)


COMMANDS = [line for job in jobs() for line in lines_of(job) if line != INSTALL]


def test_every_job_installs_before_it_verifies_and_keeps_its_report() -> None:
    found = list(jobs())
    assert len(found) == len(COMMANDS) == 4
    for job in found:
        first, second = lines_of(job)
        assert first == INSTALL
        (report,) = re.findall(r"--output (\S+)", second)
        assert report in json.dumps(job.get("artifacts") or job["steps"][-1])
        assert job.get("artifacts", {}).get("when") == "always" or job["steps"][-1]["if"] == "always()"


@pytest.mark.parametrize("command, broken", [*((command, True) for command in COMMANDS), (COMMANDS[0], False)])
def test_the_lines_judge_and_write_a_report_by_its_standard(
    tmp_path: Path, hub: HubServer, command: str, broken: bool
) -> None:
    folder = dense_llama(tmp_path / "checkout")
    if broken:
        edit_json(folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    hub.publish("owner/name", folder)
    done = shell(command, folder, program_of(tmp_path / "bin"), hub)
    assert done.returncode == int(broken), done.stderr
    report = next(folder.glob("ckpt.*"))
    assert ("F06" in failures(report)) == broken


def shell(command: str, folder: Path, programs: Path, hub: HubServer) -> Run:
    environment = {**os.environ, **hub.env(), "PATH": f"{programs}:{os.environ['PATH']}"}
    return run("bash", "-e", "-c", command, cwd=folder, environment=environment, check=False)


def failures(report: Path) -> str:
    """What failed, from a report that is valid by its schema."""
    if report.suffix == ".xml":
        junit().validate(str(report))
        cases = ElementTree.parse(report).iter("testcase")
        return " ".join(case.attrib["name"] for case in cases if case.find("failure") is not None)
    log = json.loads(report.read_text())
    assert [error.message for error in sarif().iter_errors(log)] == []
    return " ".join(result["ruleId"] for result in log["runs"][0]["results"])


@cache
def junit() -> XMLSchema:
    return XMLSchema(DATA / "junit-10.xsd")


@cache
def sarif() -> Draft7Validator:
    return Draft7Validator(json.loads((DATA / "sarif-schema-2.1.0.json").read_text()))


def test_the_configuration_of_pre_commit_names_hooks_that_there_are() -> None:
    (snippet,) = (snippet for snippet in SNIPPETS if "repos" in snippet)
    manifest = {hook["id"]: hook for hook in yaml.safe_load(MANIFEST.read_text())}
    assert [hook["id"] for hook in snippet["repos"][0]["hooks"]] == list(manifest)
    assert all(hook["language"] == "python" and hook["always_run"] for hook in manifest.values())
    assert not any(hook["pass_filenames"] for hook in manifest.values())
