"""Profiles: schemas over the layout document, judged on layouts written by hand and on what the operations plan."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from layouts import (
    ATTENTION,
    BODY_EXPERTS,
    DROP,
    GDN,
    LAYERS,
    LINEAR_BODY,
    MTP_EXPERTS,
    dense,
    experts_only,
    full_body,
    packed,
    planned_layout,
)
from writing import drafted

from checkpoint import Draft, open_checkpoint
from checkpoint.layout import layout
from demo.replica import inventory, weight_map
from demo.sparse import write_sparse
from schemas import names, validate
from surgery import int8_head, load_preset, quantize

PROFILES = [name for name in names() if name.startswith("profiles/")]
FUSED = ("down_proj", "gate_up_proj")
SPLIT = ("down_proj", "gate_proj", "up_proj")


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


Q36, Q35 = "Qwen3.6-35B-A3B", "Qwen3.5-35B-A3B"
F32_STATE = re.compile(r".*\.linear_attn\.(A_log|norm\.weight)")
MTP_FUSED = "mtp.layers.0.mlp.experts."


def write_qwen35(replica: Path, out: Path) -> Path:
    """The same model as Qwen3.5 is published: state in F32, 785 MTP tensors with the experts one by one."""
    out.mkdir()
    where = weight_map()
    shards: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for name, (dtype, shape) in inventory().items():
        shard = shards.setdefault(where[name], {})
        if not name.startswith(MTP_FUSED):
            shard[name] = ("F32" if F32_STATE.fullmatch(name) else dtype, shape)
            continue
        fused = name.endswith("gate_up_proj")
        parts, rows = (("gate_proj", "up_proj"), shape[1] // 2) if fused else (("down_proj",), shape[1])
        for expert in range(shape[0]):
            shard |= {f"{MTP_FUSED}{expert}.{part}.weight": (dtype, [rows, shape[2]]) for part in parts}
    for file, tensors in shards.items():
        write_sparse(out / file, tensors)
    names = {name: file for file, tensors in shards.items() for name in tensors}
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (out / "config.json").write_bytes((replica / "config.json").read_bytes())
    return out


def build(source: Path, name: str) -> Draft:
    preset = load_preset(name)
    return drafted(source, partial(quantize, groups=preset.groups, ignore=preset.ignore, maths=preset.maths))


@pytest.fixture(scope="module")
def planned(replica: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Layouts of all builds of both releases at full size, by release and build."""
    folder = tmp_path_factory.mktemp("planned")
    layouts = {}
    for release, source in ((Q36, replica), (Q35, write_qwen35(replica, folder / "base"))):
        body = build(source, "body-int4-g128")
        builds = {"experts": build(source, "experts-int4-g32"), "body": body, "body, INT8 head": int8_head(body)}
        for name, draft in builds.items():
            layouts[release, name] = planned_layout(draft, folder / f"{release}-{name}")
    return layouts


@pytest.mark.parametrize("release", [Q36, Q35])
@pytest.mark.parametrize(
    ("name", "profile"),
    [("experts", "experts-int4-g32"), ("body", "body-int4-g128"), ("body, INT8 head", "body-int4-g128")],
)
def test_what_a_preset_plans_at_full_size_conforms_to_its_profile_alone(
    planned: dict[tuple[str, str], dict[str, Any]], release: str, name: str, profile: str
) -> None:
    conforming = [one for one in PROFILES if not validate(planned[release, name], one)]
    assert conforming == [f"profiles/{profile}"]
    assert validate(planned[release, name], "layout") == []
    assert (
        planned[release, name]["totals"]["packed_modules"]
        == {
            "experts": 41 * 768,
            "body": 40 * 768 + 250,
            "body, INT8 head": 40 * 768 + 251,
        }[name]
    )


def test_the_bases_themselves_conform_to_no_profile(replica: Path) -> None:
    document = layout(open_checkpoint(replica))
    assert [one for one in PROFILES if not validate(document, one)] == []
    assert validate(document, "layout") == []


def test_the_full_size_layout_keeps_the_state_and_the_mtp_layout_of_its_base(
    planned: dict[tuple[str, str], dict[str, Any]],
) -> None:
    newer, older = planned[Q36, "body"]["modules"], planned[Q35, "body"]["modules"]
    assert {entry["dtype"] for name, entry in newer.items() if name.endswith("A_log")} == {"BF16"}
    assert {entry["dtype"] for name, entry in older.items() if name.endswith("A_log")} == {"F32"}
    assert [name for name in newer if name.startswith(MTP_FUSED)] == [f"{MTP_FUSED}{leaf}" for leaf in FUSED]
    assert [name for name in older if name.startswith(MTP_FUSED)] == [f"{MTP_FUSED}{{0-255}}.{leaf}" for leaf in SPLIT]
