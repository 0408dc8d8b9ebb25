"""Schemas: the index, how faults read, and how a schema is found. The big documents have files of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
from layouts import full_body
from quantization_configs import DROP, config, weights

from schemas import BadSchema, SchemaFault, load, names, validate

INDEX: dict[str, Any] = {
    "metadata": {"total_size": 71903645408.0},
    "weight_map": {"lm_head.weight": "model-00026-of-00026.safetensors"},
}


def index(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (INDEX | changes).items() if value is not DROP}


@pytest.mark.parametrize(
    "document",
    [
        INDEX,
        index(metadata={"total_size": 71903645408, "total_parameters": 35951822704}),
        index(metadata={}),
        index(metadata={"total_size": 4, "format": "pt"}),
        index(weight_map={"a b.weight": "model.safetensors"}),
    ],
)
def test_an_index_as_exporters_write_it_conforms(document: dict[str, Any]) -> None:
    assert validate(document, "index") == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (index(metadata=DROP), ""),
        (index(weight_map=DROP), ""),
        (index(weight_map={}), "weight_map"),
        (index(metadata={"total_size": "71 GB"}), "metadata.total_size"),
        (index(metadata={"total_size": 4.5}), "metadata.total_size"),
        (index(metadata={"total_size": -1}), "metadata.total_size"),
        (index(weight_map={"a": "../model.safetensors"}), "weight_map.a"),
        (index(weight_map={"a": "/etc/model.safetensors"}), "weight_map.a"),
        (index(weight_map={"a": "sub/model.safetensors"}), "weight_map.a"),
        (index(weight_map={"a": "sub\\model.safetensors"}), "weight_map.a"),
        (index(weight_map={"a": "..safetensors"}), "weight_map.a"),
        (index(weight_map={"a": "model.safetensors\n"}), "weight_map.a"),
        (index(weight_map={"a": "model.bin"}), "weight_map.a"),
        (index(weight_map={"a": 1}), "weight_map.a"),
        (index(weight_map={"": "model.safetensors"}), "weight_map"),
        (index(weight_map={" a": "model.safetensors"}), "weight_map"),
        (index(weight_map={"a\n": "model.safetensors"}), "weight_map"),
        ([], ""),
    ],
)
def test_a_defective_index_is_refused_at_its_place(document: Any, path: str) -> None:
    assert [fault.path for fault in validate(document, "index")] == [path]


def test_a_fault_names_the_place_and_the_reason() -> None:
    faults = validate(weights(group_size=32, strategy="channel"), "quantization_config")
    assert [str(fault) for fault in faults] == [
        "config_groups.group_0.weights.strategy: 'channel' is not one of [None, 'group', 'tensor_group']"
        " (a positive group_size needs strategy group)"
    ]


def test_all_faults_are_reported_in_one_go() -> None:
    document = config(quant_method="gptq", ignore=["", 3], format="zip")
    paths = [fault.path for fault in validate(document, "quantization_config")]
    assert paths == ["format", "ignore[0]", "ignore[1]", "quant_method"]


def test_a_message_does_not_quote_a_whole_document() -> None:
    document = {f"tensor.{number}": number for number in range(10_000)}
    (fault,) = validate({"metadata": {}, "weight_map": [document]}, "index")
    assert len(fault.message) < 300


def test_odd_keys_are_quoted_in_a_path_and_cannot_drive_a_terminal() -> None:
    faults = validate(index(weight_map={"a.\x1b[2J": "../x"}), "index")
    where, what = 'weight_map["a.\\x1b[2J"]', "'../x' is not a plain file name in the checkpoint's own folder"
    assert SchemaFault(where, f"{what}, ending in .safetensors") in faults


def test_every_schema_is_valid_titled_and_found_under_its_own_id() -> None:
    from jsonschema import Draft202012Validator

    assert {"family", "index", "layout", "quantization_config"} < set(names())
    for name in names():
        schema = load(name)
        Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"https://ckpt.invalid/schemas/{name}.schema.json"
        assert schema["title"]


def test_a_loaded_schema_is_a_copy() -> None:
    load("layout")["properties"].clear()
    assert load("layout")["properties"]


def test_an_unknown_schema_name_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="quantization_config"):
        validate({}, "quantisation")


def test_a_schema_of_ones_own_may_build_on_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a schema was fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    own = {
        "$ref": "https://ckpt.invalid/schemas/layout.schema.json",
        "properties": {"tied": {"const": True, "description": "we only serve tied models"}},
    }
    assert [str(fault) for fault in validate(full_body(), own)] == [
        "tied: False is not True (we only serve tied models)"
    ]


def test_a_schema_that_refers_to_nothing_is_refused_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a schema was fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(BadSchema, match=r"https://example\.com/other\.json"):
        validate({}, {"$ref": "https://example.com/other.json"})


def test_a_schema_that_is_no_schema_is_refused() -> None:
    with pytest.raises(BadSchema, match=r"properties\.tied\.type"):
        validate({}, {"properties": {"tied": {"type": "yesno"}}})


def test_importing_schemas_does_not_import_jsonschema() -> None:
    code = "import sys, schemas; schemas.names(); sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
