"""SARIF as GitHub code scanning takes it: by the standard's schema, with places that open, prints that stay."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, dense_llama, edit_json, llama_entries, packed_llama, without, write_checkpoint
from damaged import damaged
from hostile import FORBIDDEN, forged, hostile_checkpoint
from jsonschema import Draft7Validator

from checkpoint import CONFIG, INDEX, survey
from verify import Finding, Report, verify
from verify.reports.lines import line_of, line_of_key, parts_of
from verify.reports.sarif import sarif


@cache
def validator() -> Draft7Validator:
    schema = json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text())
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


def log_of(folder: Path, **options: Any) -> dict[str, Any]:
    """The run of the log of `folder`, valid by the schema."""
    checkpoint = survey(folder)
    log = json.loads(json.dumps(sarif(verify(checkpoint, **options), checkpoint)))
    assert [error.message for error in validator().iter_errors(log)] == []
    (run,) = log["runs"]
    return run


def places_of(run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Rule -> file and line of its first result."""
    found: dict[str, tuple[str, int]] = {}
    for result in run["results"]:
        where = result["locations"][0]["physicalLocation"]
        found.setdefault(result["ruleId"], (where["artifactLocation"]["uri"], where["region"]["startLine"]))
    return found


def test_the_log_satisfies_the_standards_schema(tmp_path: Path, qwen_moe_f32_base: Path) -> None:
    run = log_of(damaged(qwen_moe_f32_base, tmp_path / "out"), base=qwen_moe_f32_base, level="full")
    assert {result["ruleId"] for result in run["results"]} >= {"M01", "N06", "X05", "I03"}
    assert run["tool"]["driver"]["name"] == "ckpt"


def test_a_sound_checkpoint_gives_rules_and_no_result(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path)
    run = log_of(folder)
    assert run["results"] == []
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(verify(folder).rules)
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["message"]["text"] == "Not judged: what changed since the base (no base was given)"


def test_rules_carry_help_and_levels(tmp_path: Path) -> None:
    rules = {rule["id"]: rule for rule in log_of(dense_llama(tmp_path))["tool"]["driver"]["rules"]}
    assert rules["F10"]["defaultConfiguration"]["level"] == "warning"
    assert rules["F01"]["defaultConfiguration"]["level"] == "error"
    assert "Evidence: z-lab/paroquant#47" in rules["M01"]["help"]["text"]
    assert rules["M01"]["properties"]["tags"] == ["draft head", "vllm", "sglang"]


def test_results_refer_to_their_rule_by_position(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, without(llama_entries(), "model.norm.weight"), LLAMA)
    run = log_of(folder)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert [result["level"] for result in run["results"]] == ["error"]


def test_a_config_path_is_the_line_it_stands_on(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path)
    edit_json(
        folder / CONFIG, lambda config: config["quantization_config"]["config_groups"]["group_0"].update(format="x")
    )
    lines = (folder / CONFIG).read_text().splitlines()
    file, line = places_of(log_of(folder))["C02"]
    assert file == CONFIG
    assert '"group_0"' in lines[line - 1] or '"quantization_config"' in lines[line - 1]


def test_a_tensor_is_where_the_index_lists_it(tmp_path: Path) -> None:
    entries = llama_entries() | {"model.layers.1.mlp.up_proj.weight": ("BF16", (256, 64), None)}
    folder = write_checkpoint(tmp_path, entries, LLAMA)
    lines = (folder / INDEX).read_text().splitlines()
    file, line = places_of(log_of(folder))["I02"]
    assert file == INDEX
    assert '"model.layers.1.mlp.up_proj.weight"' in lines[line - 1]


def test_a_side_file_opens_at_the_key(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path)
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(a=[1, 2], extra_special_tokens=[]))
    lines = (folder / "tokenizer_config.json").read_text().splitlines()
    file, line = places_of(log_of(folder))["X05"]
    assert file == "tokenizer_config.json"
    assert '"extra_special_tokens"' in lines[line - 1]


def test_a_missing_file_and_a_lone_shard_have_a_place_too(tmp_path: Path) -> None:
    folder = dense_llama(tmp_path / "a")
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert places_of(log_of(folder))["F04"] == ("model-00002-of-00002.safetensors", 1)
    lone = write_checkpoint(tmp_path / "b", without(llama_entries(), "model.norm.weight"), LLAMA, shards=1)
    (lone / INDEX).unlink()
    (lone / "model-00001-of-00001.safetensors").rename(lone / "model.safetensors")
    assert places_of(log_of(lone))["I01"] == (CONFIG, 1)


def test_uris_are_relative_to_where_the_command_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = dense_llama(tmp_path / "my export")
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))
    monkeypatch.chdir(tmp_path)
    assert places_of(log_of(Path("my export")))["F10"][0] == f"my%20export/{INDEX}"
    assert places_of(log_of(folder))["F10"][0] == INDEX
    assert places_of(log_of(Path("../" + tmp_path.name + "/my export")))["F10"][0] == INDEX


def test_fingerprints_stay_when_the_wording_changes_and_tell_results_apart(tmp_path: Path) -> None:
    checkpoint = survey(dense_llama(tmp_path))

    def prints(*findings: Finding) -> list[str]:
        run = sarif(Report("x", findings), checkpoint)["runs"][0]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]

    first = Finding("F10", "warning", "a", "total_size 1")
    second = Finding("F10", "warning", "a", "total_size 2", "worse now", count=3)
    assert prints(first) == prints(second)
    assert len(set(prints(first, second, Finding("F09", "error", "a", "b"), Finding("F10", "note", "b", "c")))) == 4
    assert prints(first, second)[0] == prints(first)[0]


def test_places_of_one_finding_become_related_locations(tmp_path: Path) -> None:
    checkpoint = survey(dense_llama(tmp_path))
    place = "model.layers.{0-1}.mlp.up_proj.weight, lm_head.weight"
    (result,) = sarif(Report("x", (Finding("I02", "error", place, "b", count=3),)), checkpoint)["runs"][0]["results"]
    lines = (tmp_path / INDEX).read_text().splitlines()
    where = [one["physicalLocation"]["region"]["startLine"] for one in result["locations"] + result["relatedLocations"]]
    assert ["up_proj" in lines[where[0] - 1], "lm_head" in lines[where[1] - 1]] == [True, True]


def test_hostile_names_are_valid_uris_and_plain_text(tmp_path: Path) -> None:
    for folder in (hostile_checkpoint(tmp_path / "a"), forged(tmp_path / "b")):
        run = log_of(folder)
        assert not set(json.dumps(run, ensure_ascii=False)) & set(FORBIDDEN)
        for result in run["results"]:
            uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            assert uri.isascii()
            assert not set(uri) & set('<> "\n')


TEXT = '{\n  "a": {"x": 1,\n    "b": [10, {"c":\n 2}]},\n  "d.e": null, "": 3\n}\n'


@pytest.mark.parametrize(
    "path, line",
    [("", 1), ("a", 2), ("a.b", 3), ("a.b[0]", 3), ("a.b[1].c", 3), ('["d.e"]', 5), ("a.zzz", 2), ("zzz", 1)],
)
def test_lines_are_those_of_the_text(path: str, line: int) -> None:
    json.loads(TEXT)
    assert line_of(TEXT, parts_of(path)) == line


def test_a_key_is_found_in_either_spelling() -> None:
    assert line_of_key('{\n"\\u00e9": 1}', "é") == 2
    assert line_of_key('{\n"é" : 1}', "é") == 2
    assert line_of_key('{"a":\n"é"}', "é") is None
