"""Schemas: what they accept and refuse, measured against the code that really reads the documents."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
from typing import Any

import pytest

from schemas import BadSchema, SchemaFault, load, names, validate

INT4: dict[str, Any] = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 128,
    "dynamic": False,
}
TOKEN: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def config(**changes: Any) -> dict[str, Any]:
    """A quantization_config as compressed-tensors 0.20 writes it, with some of its keys changed; DROP removes one."""
    group = {"targets": ["Linear"], "format": "pack-quantized", "weights": INT4}
    document = {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": ["re:.*mtp.*", "lm_head"],
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
    return {key: value for key, value in (document | changes).items() if value is not DROP}


DROP = object()


def group(**changes: Any) -> dict[str, Any]:
    merged = {"targets": ["Linear"], "weights": INT4} | changes
    return config(config_groups={"group_0": {key: value for key, value in merged.items() if value is not DROP}})


def weights(**changes: Any) -> dict[str, Any]:
    return group(weights={key: value for key, value in (INT4 | changes).items() if value is not DROP})


AGREED: dict[str, dict[str, Any]] = {
    "plain": config(),
    "int8 head as a second group": config(
        config_groups={
            "group_0": {"targets": ["Linear"], "weights": INT4},
            "group_1": {"targets": ["re:.*lm_head$"], "weights": INT4 | {"num_bits": 8}},
        }
    ),
    "every key with nulls, as 0.13 to 0.19 write": weights(
        block_structure=None,
        actorder=None,
        scale_dtype=None,
        zp_dtype=None,
        observer="memoryless_minmax",
        observer_kwargs={},
    ),
    "asymmetric": weights(symmetric=False, zp_dtype="torch.int8"),
    "channel": weights(strategy="channel", group_size=-1),
    "channel with null group": weights(strategy="channel", group_size=None),
    "channel by group_size alone": weights(strategy=DROP, group_size=-1),
    "channel with a positive group": weights(strategy="channel"),
    "tensor with a positive group": weights(strategy="tensor"),
    "group without size": weights(group_size=DROP),
    "group of null": weights(group_size=None),
    "group of zero": weights(group_size=0),
    "group of -1": weights(group_size=-1),
    "group of -2": weights(group_size=-2),
    "strategy left out": weights(strategy=DROP),
    "unknown strategy": weights(strategy="row"),
    "block": weights(strategy="block", group_size=DROP, block_structure=[128, 128]),
    "block as text": weights(strategy="block", group_size=DROP, block_structure="128x128"),
    "block of three": weights(strategy="block", group_size=DROP, block_structure=[1, 2, 3]),
    "block of zero": weights(strategy="block", group_size=DROP, block_structure=[0, 4]),
    "block as odd text": weights(strategy="block", group_size=DROP, block_structure="128"),
    "block without structure": weights(strategy="block", group_size=DROP),
    "structure without block": weights(block_structure=[128, 128]),
    "structure without strategy": weights(strategy=DROP, group_size=DROP, block_structure=[128, 128]),
    "actorder weight": weights(actorder="weight"),
    "actorder static": weights(actorder="static"),
    "actorder false": weights(actorder=False),
    "actorder true": weights(actorder=True),
    "actorder group": weights(actorder="group"),
    "actorder dynamic": weights(actorder="dynamic"),
    "unknown actorder": weights(actorder="random"),
    "scale dtype": weights(scale_dtype="torch.bfloat16"),
    "scale dtype without torch": weights(scale_dtype="float32"),
    "no such dtype": weights(scale_dtype="torch.float7"),
    "unknown key in weights": weights(scale_type="bf16"),
    "bits as a word": weights(num_bits="four"),
    "symmetric as a word": weights(symmetric="maybe"),
    "unknown type": weights(type="posit"),
    "float 8": weights(type="float", num_bits=8),
    "float 4": weights(type="float", num_bits=4, strategy="tensor_group", group_size=16),
    "float 6": weights(type="float", num_bits=6),
    "dynamic weights by group": weights(dynamic=True),
    "dynamic weights by channel": weights(dynamic=True, strategy="channel", group_size=None),
    "dynamic weights by -1": weights(dynamic=True, strategy=DROP, group_size=-1),
    "dynamic local": weights(dynamic="local", strategy="tensor_group", group_size=16),
    "dynamic local by group": weights(dynamic="local"),
    "dynamic local, strategy left out": weights(dynamic="local", strategy=DROP),
    "unknown dynamic": weights(dynamic="sometimes"),
    "observer of null": weights(observer=None),
    "observer arguments of null": weights(observer_kwargs=None),
    "no weights": group(weights=None),
    "token activations": group(input_activations=TOKEN),
    "static token activations": group(input_activations=TOKEN | {"dynamic": False}),
    "token activations, dynamic left out": group(input_activations={"num_bits": 8, "strategy": "token"}),
    "channel activations": group(input_activations={"num_bits": 8, "strategy": "channel"}),
    "activations by -1": group(input_activations={"num_bits": 8, "group_size": -1}),
    "activations by tensor, unsaid": group(input_activations={"num_bits": 8}),
    "ordered activations": group(input_activations=TOKEN | {"actorder": "weight"}),
    "ordered outputs": group(output_activations={"num_bits": 8, "actorder": "weight"}),
    "channel outputs": group(output_activations={"num_bits": 8, "strategy": "channel"}),
    "group format null": group(format=None),
    "group format mixed": group(format="mixed-precision"),
    "group format unknown": group(format="zip"),
    "no targets": group(targets=DROP),
    "targets as text": group(targets="Linear"),
    "unknown key in group": group(ignore=["lm_head"]),
    "preset": config(config_groups={"W4A16": ["Linear"]}),
    "block preset": config(config_groups={"FP8_BLOCK": ["Linear"]}),
    "no such preset": config(config_groups={"W9A16": ["Linear"]}),
    "groups as a list": config(config_groups=[]),
    "no groups": config(config_groups=DROP),
    "group of null value": config(config_groups={"group_0": None}),
    "ignore null": config(ignore=None),
    "ignore absent": config(ignore=DROP),
    "ignore as text": config(ignore="lm_head"),
    "ignore of numbers": config(ignore=[1]),
    "status unknown": config(quantization_status="done"),
    "status decompressed": config(quantization_status="decompressed"),
    "status absent": config(quantization_status=DROP),
    "ratio": config(global_compression_ratio=1.5),
    "ratio null": config(global_compression_ratio=None),
    "ratio as a word": config(global_compression_ratio="half"),
    "kv cache": config(kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}),
    "kv cache with a wrong key": config(kv_cache_scheme={"bits": 8}),
    "mixed precision on top": config(format="mixed-precision"),
    "unknown key on top": config(run_compressed=True),
    "as written by other tools": config(version="0.18.0", sparsity_config={}, transform_config={}),
}

STRICTER: dict[str, dict[str, Any]] = {
    "no quant_method": config(quant_method=DROP),
    "another quant_method": config(quant_method="gptq"),
    "no format": config(format=DROP),
    "unknown format": config(format="zip"),
    "no group at all": config(config_groups={}),
    "no target at all": group(targets=[]),
    "empty target": group(targets=[""]),
    "bits as digits": weights(num_bits="4"),
    "more bits than an integer is packed to": weights(num_bits=64),
    "spelled in capitals": weights(type="INT"),
    "preset in small letters": config(config_groups={"w4a16": ["Linear"]}),
    "sparsity": config(sparsity_config={"targets": ["Linear"]}),
}


def compressed_tensors_accepts(document: dict[str, Any]) -> bool:
    from compressed_tensors.quantization import QuantizationConfig

    try:
        QuantizationConfig.model_validate(copy.deepcopy(document))
    except (ValueError, KeyError, NotImplementedError, TypeError):
        return False
    return True


@pytest.mark.parametrize("case", AGREED)
def test_quantization_config_is_accepted_exactly_when_compressed_tensors_reads_it(case: str) -> None:
    faults = validate(AGREED[case], "quantization_config")
    assert (faults == []) == compressed_tensors_accepts(AGREED[case]), faults


@pytest.mark.parametrize("case", STRICTER)
def test_quantization_config_refuses_what_engines_stumble_over_though_compressed_tensors_reads_it(case: str) -> None:
    assert compressed_tensors_accepts(STRICTER[case])
    assert validate(STRICTER[case], "quantization_config")


def test_every_preset_of_compressed_tensors_is_known() -> None:
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    for preset in PRESET_SCHEMES:
        assert validate(config(config_groups={preset: ["Linear"]}), "quantization_config") == [], preset


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


def packed(bits: int, group_size: int, **changes: Any) -> dict[str, Any]:
    entry = {
        "state": "packed",
        "kind": "linear",
        "shape": [512, 2048],
        "bits": bits,
        "strategy": "group",
        "group_size": group_size,
        "symmetric": True,
        "scale_dtype": "BF16",
        "count": 1,
        "bytes": 1,
    }
    return entry | changes


def dense(**changes: Any) -> dict[str, Any]:
    return {"state": "dense", "kind": "linear", "dtype": "BF16", "shape": [64, 64], "count": 1, "bytes": 1} | changes


LAYERS = "model.language_model.layers.{0-39}."
GDN = "model.language_model.layers.{0-2,4-6}.linear_attn."
ATTENTION = "model.language_model.layers.{3,7}.self_attn."
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
DENSE_ANYWAY = [
    "lm_head",
    "model.language_model.embed_tokens",
    "model.language_model.norm",
    f"{LAYERS}input_layernorm",
    f"{LAYERS}mlp.gate",
    f"{LAYERS}mlp.shared_expert_gate",
    *(f"{GDN}{leaf}" for leaf in ("in_proj_a", "in_proj_b", "conv1d", "dt_bias", "norm")),
    *(f"{ATTENTION}{leaf}" for leaf in ("q_norm", "k_norm")),
    "model.visual.blocks.{0-26}.attn.qkv",
    "model.visual.blocks.{0-26}.attn.proj",
    "mtp.fc",
    "mtp.layers.0.self_attn.q_proj",
    "mtp.layers.0.mlp.gate",
    "mtp.layers.0.mlp.shared_expert.up_proj",
]
LINEAR_BODY = [
    *(f"{LAYERS}mlp.shared_expert.{leaf}" for leaf in PROJECTIONS),
    *(f"{ATTENTION}{leaf}" for leaf in ("q_proj", "k_proj", "v_proj", "o_proj")),
    *(f"{GDN}{leaf}" for leaf in ("in_proj_qkv", "in_proj_z", "out_proj")),
]
BODY_EXPERTS = [f"{LAYERS}mlp.experts.{{0-255}}.{leaf}" for leaf in PROJECTIONS]
MTP_EXPERTS = [f"mtp.layers.0.mlp.experts.{{0-255}}.{leaf}" for leaf in PROJECTIONS]
STATE = {f"{GDN}A_log": dense(dtype="F32", kind="state")}


def layout_of(modules: dict[str, Any], *groups: tuple[int, int]) -> dict[str, Any]:
    """A layout document written by hand, with one config group for each (bits, group size)."""
    stated = {
        f"group_{number}": {"targets": ["Linear"], "weights": {"num_bits": bits, "group_size": size}}
        for number, (bits, size) in enumerate(groups)
    }
    return {
        "family": "qwen3_5_moe",
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "tied": False,
        "totals": {"bytes": 1, "tensors": 1, "modules": 1, "packed_modules": 1, "shards": 1},
        "modules": {name: entry for name, entry in modules.items() if entry is not DROP},
        "quantization": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": stated,
            "ignore": ["re:.*mtp.*"],
        },
        "shards": {"model-00001-of-00001.safetensors": {"bytes": 1, "tensors": 1}},
        "side_files": {"tokenizer.json": {"bytes": 1, "sha256": "0" * 64}},
    }


def experts_only(**changes: Any) -> dict[str, Any]:
    """The experts-only build, with entries changed by module name; DROP removes one."""
    modules = dict.fromkeys([*DENSE_ANYWAY, *LINEAR_BODY], dense()) | STATE
    return layout_of(modules | dict.fromkeys(BODY_EXPERTS + MTP_EXPERTS, packed(4, 32)) | changes, (4, 32))


def full_body(**changes: Any) -> dict[str, Any]:
    """The full-body build with a dense head and a fused MTP head, changed likewise."""
    modules = dict.fromkeys(DENSE_ANYWAY, dense()) | STATE
    modules |= dict.fromkeys(["mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.down_proj"], dense())
    return layout_of(modules | dict.fromkeys(BODY_EXPERTS + LINEAR_BODY, packed(4, 128)) | changes, (4, 128))


def test_the_experts_only_build_satisfies_its_profile() -> None:
    assert validate(experts_only(), "profiles/experts-int4-g32") == []


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (experts_only(**dict.fromkeys(BODY_EXPERTS, packed(4, 128))), BODY_EXPERTS[0]),
        (experts_only(**{BODY_EXPERTS[1]: packed(8, 32)}), BODY_EXPERTS[1]),
        (experts_only(**{BODY_EXPERTS[2]: packed(4, 32, symmetric=False)}), BODY_EXPERTS[2]),
        (experts_only(**{BODY_EXPERTS[2]: packed(4, 32, missing=["weight_scale"])}), BODY_EXPERTS[2]),
        (experts_only(**{BODY_EXPERTS[2]: packed(4, 32, beside=["weight_g_idx"])}), BODY_EXPERTS[2]),
        (experts_only(**{MTP_EXPERTS[0]: dense()}), MTP_EXPERTS[0]),
        (experts_only(**{"mtp.layers.0.mlp.experts.gate_up_proj": dense()}), "gate_up_proj"),
        (experts_only(**dict.fromkeys(MTP_EXPERTS, DROP)), "modules"),
        (experts_only(**dict.fromkeys(BODY_EXPERTS, DROP)), "modules"),
        (experts_only(**{"mtp.fc": DROP}), "modules"),
        (experts_only(**{"lm_head": packed(8, 128)}), "lm_head"),
        (experts_only(**{f"{ATTENTION}q_proj": packed(4, 32)}), f"{ATTENTION}q_proj"),
        (experts_only(**{"lm_head": dense(dtype="F16")}), "lm_head"),
        (experts_only(**{"lm_head": dense(beside=["weight_scale"])}), "lm_head"),
        (experts_only() | {"quantization": None}, "quantization"),
        (full_body(), "group_0"),
    ],
)
def test_what_departs_from_the_experts_only_build_is_named(document: dict[str, Any], place: str) -> None:
    faults = validate(document, "profiles/experts-int4-g32")
    assert any(place in fault.path for fault in faults), faults
    assert validate(document, "layout") == []


@pytest.mark.parametrize("head", [dense(), packed(8, 128)])
def test_the_full_body_build_satisfies_its_profile(head: dict[str, Any]) -> None:
    assert validate(full_body(lm_head=head), "profiles/body-int4-g128") == []


def test_the_full_body_profile_takes_either_layout_of_the_mtp_head() -> None:
    fused = dict.fromkeys(["mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.down_proj"], DROP)
    assert validate(full_body(**fused, **dict.fromkeys(MTP_EXPERTS, dense())), "profiles/body-int4-g128") == []


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (full_body(**{BODY_EXPERTS[0]: packed(4, 32)}), BODY_EXPERTS[0]),
        (full_body(**{LINEAR_BODY[0]: dense()}), LINEAR_BODY[0]),
        (full_body(**{f"{ATTENTION}o_proj": packed(8, 128)}), f"{ATTENTION}o_proj"),
        (full_body(**{f"{GDN}in_proj_z": dense()}), f"{GDN}in_proj_z"),
        (full_body(**{f"{GDN}in_proj_a": packed(4, 128)}), f"{GDN}in_proj_a"),
        (full_body(**{f"{LAYERS}mlp.gate": packed(4, 128)}), "mlp.gate"),
        (full_body(**{f"{LAYERS}mlp.shared_expert_gate": packed(4, 128)}), "shared_expert_gate"),
        (full_body(**{"model.visual.blocks.{0-26}.attn.qkv": packed(4, 128)}), "attn.qkv"),
        (full_body(**{"mtp.layers.0.self_attn.q_proj": packed(4, 128)}), "mtp.layers.0.self_attn.q_proj"),
        (full_body(**dict.fromkeys(MTP_EXPERTS, packed(4, 128))), MTP_EXPERTS[0]),
        (full_body(**{"lm_head": packed(4, 128)}), "lm_head"),
        (full_body(**{"lm_head": packed(8, 128) | {"strategy": "channel", "group_size": None}}), "lm_head"),
        (full_body(**{"lm_head": dense(dtype="F16")}), "lm_head"),
        (full_body(**{"mtp.fc": DROP}), "modules"),
        (full_body(**dict.fromkeys(BODY_EXPERTS, DROP)), "modules"),
        (full_body(**{name: DROP for name in LINEAR_BODY if "shared_expert" in name}), "modules"),
        (full_body() | {"quantization": None}, "quantization"),
        (experts_only(), BODY_EXPERTS[0]),
    ],
)
def test_what_departs_from_the_full_body_build_is_named(document: dict[str, Any], place: str) -> None:
    faults = validate(document, "profiles/body-int4-g128")
    assert any(place in fault.path for fault in faults), faults
    assert validate(document, "layout") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"lm_head": dense(state="frozen")},
        {"lm_head": {"state": "dense", "kind": "head", "count": 1, "bytes": 1}},
        {"lm_head": {"state": "packed", "kind": "head", "shape": [1, 1], "count": 1, "bytes": 1}},
        {"lm_head": dense(count=0)},
        {"lm_head": dense(zeros=1)},
    ],
)
def test_an_entry_that_does_not_say_how_it_is_stored_is_no_layout(changes: dict[str, Any]) -> None:
    assert all("lm_head" in fault.path for fault in validate(full_body(**changes), "layout"))
    assert validate(full_body(**changes), "layout")


def test_a_profile_judges_the_document_as_a_layout_too() -> None:
    document = experts_only()
    del document["shards"]
    assert [fault.message for fault in validate(document, "profiles/experts-int4-g32")] == [
        "'shards' is a required property"
    ]


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
