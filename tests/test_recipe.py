"""Recipes: what they say, what is refused in them, and what `ckpt run` makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import ckpt

from checkpoint import Address, Draft, UnreadableCheckpoint, open_checkpoint
from checkpoint.plain_yaml import NotPlain, parse
from schemas import names
from surgery import Group, Scheme, build, load_recipe, recipe_names
from verify import verify

WHOLE = """
title: All of it
base: ../base
profile: experts-int4-g32
quantize:
  maths: eager
  groups:
    - {targets: ['re:.*down_proj$'], bits: 8, group_size: channel, symmetric: false}
    - {targets: [Linear], bits: 4, group_size: 32}
  ignore: ['re:.*visual.*']
int8_head: {group_size: channel}
"""

EXPERTS = """
title: Experts alone
base: {base}
profile: experts-int4-g32
quantize:
  groups:
    - {{targets: ['re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$'], bits: 4, group_size: {size}}}
"""


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path) -> list[tuple[str, str | None]]:
    with pytest.raises(UnreadableCheckpoint) as caught:
        load_recipe(path)
    return [(problem.code, problem.tensor) for problem in caught.value.problems]


def test_every_field_is_read(tmp_path: Path) -> None:
    found = load_recipe(recipe(tmp_path, WHOLE))
    assert (found.name, found.title, found.base) == ("my", "All of it", tmp_path / "../base")
    assert found.quantize is not None
    assert found.quantize.groups == (
        Group(("re:.*down_proj$",), Scheme(8, None, symmetric=False)),
        Group(("Linear",), Scheme(4, 32)),
    )
    assert (found.quantize.ignore, found.quantize.maths) == (("re:.*visual.*",), "eager")
    assert found.head is not None
    assert (found.head.scheme, found.head.maths) == (Scheme(8, None), "fp32")


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_valid_and_names_a_profile_that_there_is(name: str) -> None:
    found = load_recipe(name)
    assert (found.quantize is None) != (found.gptq is None)
    assert found.profile is None or f"profiles/{found.profile}" in names()


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", [("recipe-invalid", None)]),
        ("[1]", [("recipe-invalid", None)]),
        ("title: x", [("recipe-invalid", None)]),
        (WHOLE + "more: 1\n", [("recipe-invalid", None)]),
        (WHOLE.replace("bits: 8", "bits: 3"), [("recipe-invalid", "quantize.groups[0].bits")]),
        (WHOLE.replace("[Linear]", "[]"), [("recipe-invalid", "quantize.groups[1].targets")]),
        (WHOLE.replace("group_size: 32", "group_size: 0"), [("recipe-invalid", "quantize.groups[1].group_size")]),
        (WHOLE.replace("bits: 8", "bits: 3").replace("eager", "exact"),
         [("recipe-invalid", "quantize.groups[0].bits"), ("recipe-invalid", "quantize.maths")]),
        (WHOLE + "title: twice\n", [("recipe-invalid", None)]),
        (WHOLE + "x: &a [1]\ny: *a\n", [("recipe-invalid", None)]),
        (WHOLE + "x: !!python/object/apply:os.system ['true']\n", [("recipe-invalid", None)]),
        ("title: [", [("recipe-invalid", None)]),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_recipe_is_told_with_its_place(
    tmp_path: Path, text: str, expected: list[tuple[str, str | None]]
) -> None:
    assert faults(recipe(tmp_path, text)) == expected


def test_a_recipe_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint, match="experts-int4-g32"):
        load_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text, message",
    [("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' twice"), ("a: {b: 1, b: 1}", "line 1"), ("1: 2", "no text"),
     ("a: &x 1\nb: *x\n", "line 2: aliases"), ("a: !!set {b}", "neither text"), ("a: 2026-01-01", "in quotes"),
     ("\x00", "special characters"), ("a: [[[[", "line 1")],
)  # fmt: skip
def test_yaml_that_does_not_mean_what_it_says_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotPlain, match=message):
        parse(text)


def test_a_build_is_its_operations(qwen_moe_base: Path) -> None:
    draft = build(Draft.of(open_checkpoint(qwen_moe_base)), load_recipe("body-int4-g128"))
    assert [step.operation for step in draft.steps] == ["quantize", "int8-head"]
    assert "lm_head.weight_packed" in draft.tensors


@pytest.mark.parametrize("name", ["experts-int4-g32", "body-int4-g128"])
def test_run_makes_a_build_that_satisfies_its_profile(name: str, qwen_moe_base: Path, tmp_path: Path) -> None:
    run = ckpt("run", name, qwen_moe_base, "--out", tmp_path / "out", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verify"]["counts"]["error"] == 0
    report = verify(tmp_path / "out", base=qwen_moe_base, schema=name, level="full")
    assert [finding.rule for finding in report.findings if finding.severity == "error"] == []


def test_run_judges_by_the_profile(qwen_moe_base: Path, tmp_path: Path) -> None:
    text = EXPERTS.format(base="unused", size=64)
    run = ckpt("run", recipe(tmp_path, text), qwen_moe_base, "--out", tmp_path / "out")
    assert run.returncode == 1
    assert "S01" in run.stdout


def test_run_takes_the_base_that_the_recipe_names(qwen_moe_base: Path, tmp_path: Path) -> None:
    text = EXPERTS.format(base=qwen_moe_base, size=32)
    run = ckpt("run", recipe(tmp_path, text), "--dry-run")
    assert run.returncode == 0, run.stderr


def test_a_recipe_may_name_a_base_on_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(WHOLE.replace("../base", "hf://owner/name@v1"))
    assert load_recipe(path).base == Address("owner/name", "v1")


def test_run_without_a_base_says_so(tmp_path: Path) -> None:
    run = ckpt("run", "experts-int4-g32", "--dry-run")
    assert run.returncode == 2
    assert "names no base" in run.stderr


def test_run_of_a_shipped_build_plans_the_full_model_in_seconds_and_a_little_memory(replica: Path) -> None:
    code = (
        "from ckpt.__main__ import main\n"
        "try: main()\n"
        "finally: print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "run", "body-int4-g128", replica, "--dry-run", "--quiet"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(run.stdout) < 500_000
