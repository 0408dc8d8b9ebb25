"""Whatever stands in config.json, the index or a side file: `verify` finds, it does not fall over."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from building import INDEX, edit_json
from defects.sound import BODY, DENSE, EXPERTS, FP8, GPTQ, SOUND
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import UnreadableCheckpoint
from verify import verify
from verify.finding import SEVERITIES
from verify.registry import Level

TEXTS = st.sampled_from(
    ["", "re:", "re:(", "re:.*", "re:(a+)+$", "Linear", "lm_head", "\ud800", "pack-quantized", "int", "0", "bfloat16"]
)
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 4, 7, 8, 64, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, True, False])
VALUES = st.recursive(
    st.none() | TEXTS | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SETTINGS = settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=False)


def paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(found for key, value in items for found in paths(value, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three values replaced or removed, or keys added."""
    result = deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths(result)))
        value = draw(VALUES)
        if not path:
            result = value if draw(st.integers(0, 9)) == 0 else result
            continue
        owner = result
        for key in path[:-1]:
            owner = owner[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                owner[path[-1]] = value
            case "remove":
                owner.pop(path[-1])
            case "add" if isinstance(owner, dict):
                owner[draw(TEXTS)] = value
            case "add":
                owner.append(value)
    return result


@cache
def folder(name: str) -> Path:
    """A sound checkpoint that stays for the whole run; its documents are written anew in each example."""
    return SOUND[name]().write(Path(_kept().name) / name)


@cache
def _kept() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="fuzz-")


@cache
def sound(name: str, file: str) -> Any:
    return json.loads((folder(name) / file).read_text())


def judged(name: str, file: str, document: Any, **options: Any) -> None:
    """Verify with `document` in place of a file; what is found must be findings."""
    path = folder(name) / file
    text = path.read_text()
    path.write_text(json.dumps(document))
    try:
        report = verify(folder(name), **options)
        assert all(finding.severity in SEVERITIES and finding.rule for finding in report.findings)
        assert list(report.lines())
    except UnreadableCheckpoint:
        pass
    finally:
        path.write_text(text)


@pytest.mark.parametrize("name", [BODY, GPTQ, DENSE, EXPERTS, FP8])
@SETTINGS
@given(data=st.data())
def test_any_config_is_judged(name: str, data: st.DataObject) -> None:
    judged(
        name, "config.json", data.draw(mutated(sound(name, "config.json"))), tp=data.draw(st.sampled_from([None, 2]))
    )


@pytest.mark.parametrize("name", [BODY, GPTQ, DENSE])
@SETTINGS
@given(data=st.data())
def test_any_quantization_config_is_judged(name: str, data: st.DataObject) -> None:
    document = deepcopy(sound(name, "config.json"))
    document["quantization_config"] = data.draw(mutated(document["quantization_config"]))
    level: Level = data.draw(st.sampled_from(["headers", "sample"]))
    judged(
        name, "config.json", document, level=level, engines=data.draw(st.sampled_from([("vllm@0.24",), ("sglang",)]))
    )


@pytest.mark.parametrize("name", [EXPERTS, BODY])
@settings(SETTINGS, max_examples=600)
@given(data=st.data())
def test_any_config_is_judged_against_a_base(name: str, data: st.DataObject) -> None:
    base = SOUND[name]().base
    document = data.draw(mutated(sound(name, "config.json")))
    judged(name, "config.json", document, level="full", base=base() if base else None)


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
@SETTINGS
@given(data=st.data())
def test_any_index_is_judged(name: str, data: st.DataObject) -> None:
    judged(name, INDEX, data.draw(mutated(sound(name, INDEX))))


@pytest.mark.parametrize("file", ["generation_config.json", "tokenizer_config.json", "preprocessor_config.json"])
@settings(SETTINGS, max_examples=600)
@given(data=st.data())
def test_any_side_file_is_judged(file: str, data: st.DataObject) -> None:
    base = SOUND[BODY]().base
    judged(BODY, file, data.draw(mutated(sound(BODY, file))), base=base() if base else None)


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, '{"a": 1, "a": 2}', "NaN", "\x00", '"text"', "1e999", "{}"])
@pytest.mark.parametrize("file", ["config.json", INDEX, "generation_config.json", "tokenizer_config.json"])
def test_any_text_is_judged(tmp_path: Path, file: str, text: str) -> None:
    path = SOUND[DENSE]().write(tmp_path / "model")
    (path / file).write_text(text)
    with suppress(UnreadableCheckpoint):
        assert verify(path).findings or file.startswith(("generation", "tokenizer"))


def test_a_shape_beyond_all_bounds_is_judged(tmp_path: Path) -> None:
    path = SOUND[DENSE]().write(tmp_path / "model")
    edit_json(path / "config.json", lambda config: config.update(vocab_size=10**30, num_hidden_layers=3))
    assert verify(path).findings
