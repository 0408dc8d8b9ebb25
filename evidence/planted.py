"""Defects that `ckpt verify` calls errors, planted in sound exports of the small model. The catalogue alone.

They are those of `tests/defects`, in a model that runs. `on` is an export of `evidence.builds`; layers 0 to 2 have
linear attention, layer 3 full attention, 16 experts each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import evidence.edits as do
from demo.shards import State
from evidence.edits import Config, Damage, Edit
from evidence.reference import dense_weight

LAYERS = "model.language_model.layers."
FIRST = f"{LAYERS}0.mlp.experts"
ATTENTION = f"{LAYERS}3.self_attn"
LINEAR = f"{LAYERS}0.linear_attn"
EXPERTS = range(16)
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
BODY, INT4, INT8 = "body-head", "experts", "experts-int8"
EIGHTS = -0x77777778
"""A word of codes that all mean zero."""

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 3996199712\n"


@dataclass(frozen=True)
class Planted:
    """One defect. `rule` is the rule of `ckpt verify` that is to find it."""

    name: str
    what: str
    on: str
    rule: str
    edit: Edit | None = None
    damage: Damage | None = None


def of_first_experts(part: str, *projections: str) -> tuple[str, ...]:
    """Names of a part of these projections, of all experts of layer 0."""
    return tuple(f"{FIRST}.{expert}.{p}.{part}" for expert in EXPERTS for p in projections or PROJECTIONS)


def rotated() -> Edit:
    """Each expert's three projections in the next one's place."""

    def edit(state: State, config: Config) -> None:
        before = {name: state[name] for part in ("weight_packed", "weight_scale") for name in of_first_experts(part)}
        for name, tensor in before.items():
            head, _, rest = name.removeprefix(f"{FIRST}.").partition(".")
            state[f"{FIRST}.{(int(head) + 1) % 16}.{rest}"] = tensor

    return edit


def fused_layer() -> Edit:
    """The experts of layer 0 dense and fused, as the base has them, and ignored."""

    def edit(state: State, config: Config) -> None:
        import torch

        weights = [
            [dense_weight(state, f"{FIRST}.{e}.{projection}.weight") for projection in PROJECTIONS] for e in EXPERTS
        ]
        do.drop(FIRST)(state, config)
        state[f"{FIRST}.gate_up_proj"] = torch.stack([torch.cat([gate, up]) for gate, up, _ in weights])
        state[f"{FIRST}.down_proj"] = torch.stack([down for _, _, down in weights])
        do.ignoring(r"re:.*layers\.0\.mlp\.experts.*")(state, config)

    return edit


def packed_under_fused_names() -> Edit:
    """The packed experts of layer 0 in one 3-D parameter each."""

    def edit(state: State, config: Config) -> None:
        import torch

        for part in ("packed", "scale"):
            rows = [[state[f"{FIRST}.{e}.{p}.weight_{part}"] for p in PROJECTIONS] for e in EXPERTS]
            state[f"{FIRST}.gate_up_proj_{part}"] = torch.stack([torch.cat([gate, up]) for gate, up, _ in rows])
            state[f"{FIRST}.down_proj_{part}"] = torch.stack([down for _, _, down in rows])
        do.drop(*(f"{FIRST}.{e}" for e in EXPERTS))(state, config)

    return edit


def second_group() -> Edit:
    """`Linear` in two groups, of which the second says 8 bits."""

    def edit(state: State, config: Config) -> None:
        groups = config["quantization_config"]["config_groups"]
        main = next(group for group in groups.values() if group["targets"] == ["Linear"])
        groups["group_9"] = json.loads(json.dumps(main)) | {"weights": main["weights"] | {"num_bits": 8}}

    return edit


def group_with(target: str, **values: object) -> Edit:
    """The group with a target that contains `target`, its own members replaced by `values`."""

    def edit(state: State, config: Config) -> None:
        groups = config["quantization_config"]["config_groups"].values()
        next(group for group in groups if target in " ".join(group["targets"])).update(values)

    return edit


def weights_with(target: str, **values: object) -> Edit:
    """The same for the members of its `weights`."""

    def edit(state: State, config: Config) -> None:
        groups = config["quantization_config"]["config_groups"].values()
        next(group for group in groups if target in " ".join(group["targets"]))["weights"].update(values)

    return edit


def without_head_group() -> Edit:
    def edit(state: State, config: Config) -> None:
        groups = config["quantization_config"]["config_groups"]
        del groups[next(name for name, group in groups.items() if "head" in " ".join(group["targets"]))]

    return edit


def edits(rule: str, on: str, table: dict[str, tuple[str, Edit]]) -> list[Planted]:
    return [Planted(name, what, on, rule, edit=edit) for name, (what, edit) in table.items()]


def damages(rule: str, on: str, table: dict[str, tuple[str, Damage]]) -> list[Planted]:
    return [Planted(name, what, on, rule, damage=damage) for name, (what, damage) in table.items()]


DRAFT = [
    *edits(
        "M01",
        BODY,
        {
            "mtp-fc-missing": ("`mtp.fc` missing", do.drop("mtp.fc")),
            "mtp-norm-missing": ("`mtp.norm` missing", do.drop("mtp.norm")),
            "mtp-experts-missing": ("the MTP head's experts missing", do.drop("mtp.layers.0.mlp.experts")),
            "mtp-o-proj-missing": ("the MTP head's `o_proj` missing", do.drop("mtp.layers.0.self_attn.o_proj")),
        },
    ),
    *edits(
        "M03",
        BODY,
        {
            "mtp-not-ignored": ("MTP head BF16, not ignored", do.not_ignoring("mtp")),
            "mtp-plain-word": ("ignored as `mtp`", do.both(do.not_ignoring("mtp"), do.ignoring("mtp"))),
            "mtp-fc-forgotten": (
                "`mtp.fc` not ignored, the rest is",
                do.both(do.not_ignoring("mtp"), do.ignoring("re:mtp.layers.*")),
            ),
        },
    ),
    *edits("C08", INT4, {"mtp-packed-ignored": ("packed MTP experts, ignored", do.ignoring("re:^mtp.*"))}),
    *edits(
        "M06",
        BODY,
        {
            "mtp-fc-zero": ("`mtp.fc` all zero", do.filled(0, "mtp.fc.weight")),
            "mtp-norm-one": ("an MTP norm all one", do.filled(1, "mtp.pre_fc_norm_embedding.weight")),
        },
    ),
    *damages(
        "M05",
        BODY,
        {"mtp-unindexed": ("MTP head in a file that the index lacks", do.unindexed("mtp.", "mtp.safetensors"))},
    ),
]

HEAD = [
    *edits(
        "C20",
        BODY,
        {
            "head-ignored": ("packed head, ignored too", do.ignoring("re:.*lm_head$")),
            "head-without-group": (
                "packed head, ignored, no group",
                do.both(without_head_group(), do.ignoring("lm_head")),
            ),
        },
    ),
    *edits("C17", BODY, {"head-by-name": ("head targeted as `lm_head`", group_with("head", targets=["lm_head"]))}),
    *edits("T01", BODY, {"head-scale-missing": ("the head's scale missing", do.drop("lm_head.weight_scale"))}),
]

MISSING = [
    *edits(
        "I01",
        BODY,
        {
            "k-proj-missing": ("`k_proj` missing, all parts", do.drop(f"{ATTENTION}.k_proj")),
            "router-missing": ("a router missing", do.drop(f"{LAYERS}0.mlp.gate")),
            "norm-missing": ("a layer's norm missing", do.drop(f"{LAYERS}0.input_layernorm")),
            "state-missing": ("`A_log` missing", do.drop(f"{LINEAR}.A_log")),
            "conv-missing": ("`conv1d` missing", do.drop(f"{LINEAR}.conv1d")),
        },
    ),
    *edits("I04", INT4, {"expert-missing": ("one expert missing", do.drop(f"{FIRST}.7"))}),
    *edits(
        "T01",
        INT4,
        {
            "codes-missing": ("one `weight_packed` missing", do.drop(f"{FIRST}.3.down_proj.weight_packed")),
            "scale-missing": ("one `weight_scale` missing", do.drop(f"{FIRST}.3.down_proj.weight_scale")),
        },
    ),
    *damages("F04", BODY, {"shard-missing": ("a shard missing, named in the index", do.lost(1))}),
]

SHAPES = [
    *edits(
        "T04",
        INT4,
        {
            "codes-half-wide": (
                "one expert's codes half as wide",
                do.changed(lambda t: t[:, : t.shape[1] // 2].clone(), f"{FIRST}.3.up_proj.weight_packed"),
            )
        },
    ),
    *edits(
        "T05",
        INT4,
        {
            "scales-coarse": (
                "layer 0's scales of groups of 64 under a config of 32",
                do.changed(lambda t: t[:, ::2].clone(), *of_first_experts("weight_scale")),
            ),
            "config-g128": ("config says groups of 128, stored are 32", weights_with("experts", group_size=128)),
        },
    ),
    *edits(
        "T06",
        INT4,
        {
            "shape-wrong": (
                "one `weight_shape` wrong",
                do.changed(lambda t: t.flip(0), f"{FIRST}.3.up_proj.weight_shape"),
            )
        },
    ),
    *edits("I07", INT4, {"fused-packed": ("packed experts under fused names", packed_under_fused_names())}),
    *edits("I06", INT4, {"layer-fused": ("a layer of experts fused and dense, ignored", fused_layer())}),
    *edits(
        "F15",
        INT4,
        {
            "prefix-twice": (
                "`language_model.` twice in names",
                do.renamed("l.language_model.", "l.language_model.language_model."),
            )
        },
    ),
    *edits(
        "X03",
        BODY,
        {
            "layer-too-few": (
                "config counts a layer less",
                do.both(
                    do.setting("text_config", "num_hidden_layers", value=3),
                    do.setting("text_config", "layer_types", value=["linear_attention"] * 3),
                ),
            )
        },
    ),
]

MATCHING = [
    *edits(
        "C07",
        BODY,
        {
            "ba-not-ignored": (
                "`in_proj_a`, `in_proj_b` BF16, not ignored",
                do.not_ignoring("in_proj_a", "in_proj_b", "in_proj_["),
            ),
            "o-proj-dense": ("one `o_proj` BF16, not ignored", do.dense(f"{ATTENTION}.o_proj")),
            "shared-dense": (
                "a shared expert BF16, not ignored",
                do.dense(*(f"{LAYERS}0.mlp.shared_expert.{p}" for p in PROJECTIONS)),
            ),
        },
    ),
    *edits(
        "C08",
        INT4,
        {"experts-ignored": ("packed experts ignored", do.ignoring(r"re:.*language_model.*mlp\.experts.*"))},
    ),
    *edits("C09", BODY, {"z-ignored": ("`in_proj_z` ignored, `in_proj_qkv` not", do.ignoring(r"re:.*in_proj_z$"))}),
    *edits(
        "C10",
        INT4,
        {
            "expert0-part": ("expert 0's `up_proj` ignored", do.ignoring(f"{FIRST}.0.up_proj")),
            "expert-dense": (
                "one expert BF16 and ignored",
                do.both(
                    do.dense(*(f"{FIRST}.3.{p}" for p in PROJECTIONS)),
                    do.ignoring(r"re:.*layers\.0\.mlp\.experts\.3\..*"),
                ),
            ),
        },
    ),
    *edits(
        "C11",
        INT4,
        {
            "target-anchored": (
                "target `re:model\\.language_model...`",
                group_with("experts", targets=[r"re:model\.language_model.*experts.*", r"re:mtp.*experts.*"]),
            )
        },
    ),
    *edits("C13", BODY, {"gate-broad": ("ignore `re:.*gate.*`", do.ignoring("re:.*gate.*"))}),
]

CONFIG = [
    *edits(
        "O01",
        INT8,
        {"int8-null": ("INT8 experts by channel, group_size null", weights_with("experts", group_size=None))},
    ),
    *edits(
        "C01",
        INT4,
        {"no-config": ("packed, no quantization_config", lambda state, config: config.pop("quantization_config"))},
    ),
    *edits(
        "C02",
        INT4,
        {
            "format-dense": (
                "format dense in group and top",
                do.both(do.quantization("format", value="dense"), group_with("experts", format="dense")),
            )
        },
    ),
    *edits(
        "C03",
        BODY,
        {
            "int-quantized": (
                "format int-quantized",
                do.both(do.quantization("format", value="int-quantized"), group_with("Linear", format="int-quantized")),
            )
        },
    ),
    *edits(
        "C04",
        INT4,
        {"unknown-field": ("an argument that no release knows", weights_with("experts", scale_kind="e8m0"))},
    ),
    *edits(
        "C18",
        BODY,
        {
            "kv-int8": (
                "KV cache in INT8",
                do.quantization(
                    "kv_cache_scheme",
                    value={"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True, "dynamic": False},
                ),
            )
        },
    ),
    *edits("C19", BODY, {"linear-twice": ("`Linear` in two groups", second_group())}),
]

FILES = [
    *damages("F01", BODY, {"header-cut": ("a file of 100 bytes", do.truncated(lambda size: 100))}),
    *damages("F02", BODY, {"file-cut": ("a file cut in half", do.truncated(lambda size: size // 2))}),
    *damages("F03", BODY, {"lfs-pointer": ("a git-lfs pointer", do.replaced_file(LFS))}),
    *damages(
        "F08",
        INT4,
        {
            "stale-router": (
                "another router of the same name in a later shard",
                do.stale(f"{LAYERS}0.mlp.gate.weight", lambda tensor: tensor.flip(0)),
            )
        },
    ),
    *damages(
        "F06",
        INT4,
        {
            "not-indexed": (
                "a norm that the index lacks",
                do.index(lambda document: document["weight_map"].pop(f"{LAYERS}0.input_layernorm.weight")),
            )
        },
    ),
]

VALUES = [
    *edits(
        "N04",
        INT4,
        {
            "words-reversed": (
                "codes of layer 0's experts in reverse",
                do.changed(do.reversed_words, *of_first_experts("weight_packed")),
            ),
            "scales-doubled": (
                "scales of layer 0's `up_proj` doubled",
                do.changed(lambda t: t * 2, *of_first_experts("weight_scale", "up_proj")),
            ),
            "scales-shifted": (
                "scales of layer 0's experts one group on",
                do.changed(do.one_group_on, *of_first_experts("weight_scale")),
            ),
        },
    ),
    *edits(
        "N05",
        INT4,
        {
            "gate-up-swapped": (
                "gate and up of layer 0's experts exchanged",
                do.exchanged(*((f"{FIRST}.{e}.gate_proj", f"{FIRST}.{e}.up_proj") for e in EXPERTS)),
            ),
            "experts-rotated": ("layer 0's experts in each other's places", rotated()),
        },
    ),
    *edits(
        "N05",
        INT4,
        {"expert-twice": ("one `up_proj` in another's place", do.copied(f"{FIRST}.1.up_proj", f"{FIRST}.2.up_proj"))},
    ),
    *edits(
        "N04",
        INT4,
        {
            "expert-dead": (
                "one expert's `down_proj` all zero",
                do.filled(EIGHTS, f"{FIRST}.1.down_proj.weight_packed"),
            )
        },
    ),
    *edits(
        "N01",
        INT4,
        {"scale-nan": ("one scale NaN", do.filled(float("nan"), f"{FIRST}.1.down_proj.weight_scale", first=1))},
    ),
    *edits(
        "N02",
        BODY,
        {
            "norm-nan": (
                "one value of a norm NaN",
                do.filled(float("nan"), f"{LAYERS}0.input_layernorm.weight", first=1),
            )
        },
    ),
    *edits(
        "N06",
        INT4,
        {
            "norms-rerounded": (
                "norms written back rounded",
                do.changed(
                    do.rounded_norm,
                    *(
                        f"{LAYERS}{layer}.{norm}.weight"
                        for layer in range(4)
                        for norm in ("input_layernorm", "post_attention_layernorm")
                    ),
                ),
            ),
            "router-other": (
                "a router's rows in reverse",
                do.changed(lambda t: t.flip(0), f"{LAYERS}0.mlp.gate.weight"),
            ),
            "state-reset": ("`A_log` all zero", do.filled(0, f"{LINEAR}.A_log")),
        },
    ),
    *edits(
        "X03",
        INT4,
        {
            "top-k": (
                "config: 2 experts a token instead of 4",
                do.setting("text_config", "num_experts_per_tok", value=2),
            ),
            "rope-theta": (
                "config: rope_theta 10,000",
                do.setting("text_config", "rope_parameters", "rope_theta", value=10000),
            ),
        },
    ),
]

PLANTED: tuple[Planted, ...] = (*DRAFT, *HEAD, *MISSING, *SHAPES, *MATCHING, *CONFIG, *FILES, *VALUES)
