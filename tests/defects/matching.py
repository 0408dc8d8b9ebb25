"""Targets and ignore entries that reach other modules than they should, in some engine or in all."""

from __future__ import annotations

from typing import Any

from building import scheme

from defects.build import (
    Build,
    Defect,
    Edit,
    both,
    defects,
    drop,
    ignoring,
    instead,
    not_ignoring,
    quantized,
)
from defects.packed import unpack
from defects.sound import (
    BODY,
    COUNT,
    DENSE,
    EXPERT_TARGET,
    EXPERTS,
    GPTQ,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    gptq_dense,
)

OWNER = f"{LAYERS}0.mlp.experts"


GROUP = ("config_groups", "group_0")


VISION = "re:.*visual.*"


SGLANG, TRANSFORMERS = ({"engines": (name,)} for name in ("sglang", "transformers"))


def targets(*entries: str, group: str = "group_0") -> Edit:
    return quantized("config_groups", group, "targets", value=list(entries))


def grouped(**groups: Any) -> Edit:
    """Config groups in this order; a string stands for the group that has that name now."""

    def edit(build: Build) -> None:
        before = build.quantization["config_groups"]
        build.quantization["config_groups"] = {
            name: before[group] if isinstance(group, str) else group for name, group in groups.items()
        }

    return edit


def dense(module: str, rows: int, columns: int) -> Edit:
    return unpack(module, rows, columns)


def dense_layer(build: Build) -> None:
    """The experts of a layer dense, one by one, and ignored."""
    for expert in range(COUNT):
        for part in ("gate_proj", "up_proj", "down_proj"):
            rows, columns = (HIDDEN, INTERMEDIATE) if part == "down_proj" else (INTERMEDIATE, HIDDEN)
            unpack(f"{OWNER}.{expert}.{part}", rows, columns)(build)
    ignoring(r"re:.*model\.layers\.0\.mlp\.experts.*")(build)


def _dense_shared(build: Build) -> None:
    for part in ("gate_proj", "up_proj", "down_proj"):
        rows, columns = (HIDDEN, INTERMEDIATE) if part == "down_proj" else (INTERMEDIATE, HIDDEN)
        unpack(f"{LAYERS}0.mlp.shared_expert.{part}", rows, columns)(build)


def _dense_expert(build: Build, expert: int) -> None:
    for part in ("gate_proj", "up_proj", "down_proj"):
        rows, columns = (HIDDEN, INTERMEDIATE) if part == "down_proj" else (INTERMEDIATE, HIDDEN)
        unpack(f"{OWNER}.{expert}.{part}", rows, columns)(build)
    ignoring(rf"re:.*layers\.0\.mlp\.experts\.{expert}\..*")(build)


def _second_group(build: Build, target: str) -> None:
    """A group of 8 bits for one shard of a fused layer, which is stored in 8 bits."""
    build.quantization["config_groups"]["group_1"] = scheme(8, 32) | {"targets": [target]}
    for module in build.modules("self_attn.q_proj" if "q_proj" in target else "0.mlp.gate_proj"):
        rows, words = build.entries[f"{module}.weight_packed"][1]
        build.entries[f"{module}.weight_packed"] = ("I32", (rows, words * 2), None)


def _open(build: Build) -> None:
    """Targets that name what is packed, and an ignore list that is left empty."""
    targets(r"re:.*\.self_attn\.[qkvo]_proj$", EXPERT_TARGET, r"re:.*shared_expert\.\w+$")(build)
    build.quantization["ignore"] = ["re:^mtp.*", *(n for n in gptq_dense() if not n.endswith(".out_proj"))]


def _packed_router(build: Build) -> None:
    module = f"{LAYERS}0.mlp.gate"
    drop(f"{module}.weight")(build)
    for part, entry in {
        "weight_packed": ("I32", (COUNT, HIDDEN // 8), None),
        "weight_scale": ("BF16", (COUNT, 1), None),
        "weight_shape": ("I64", (2,), COUNT.to_bytes(8, "little") + HIDDEN.to_bytes(8, "little")),
    }.items():
        build.entries[f"{module}.{part}"] = entry
    instead(r"re:.*mlp\.gate$", r"re:.*1\.mlp\.gate$")(build)


def _orphan(build: Build) -> None:
    del build.quantization["config_groups"]["group_1"]
    ignoring("lm_head")(build)


GROUPS: dict[str, Edit] = {
    "q_proj in a group of its own": lambda b: _second_group(b, r"re:.*self_attn\.q_proj$"),
    "gate_proj in a group of its own": lambda b: _second_group(b, "model.layers.0.mlp.gate_proj"),
}


MATCHING = [
    *defects("C06", DENSE, GROUPS),
    *defects(
        "C07",
        BODY,
        {
            "in_proj_a and in_proj_b not ignored": not_ignoring("in_proj_a", "in_proj_b"),
            "a dense shared expert": _dense_shared,
            "a dense o_proj": dense(f"{LAYERS}1.self_attn.o_proj", 128, 128),
        },
    ),
    *defects(
        "C07",
        GPTQ,
        {
            "linear attention forgotten": not_ignoring("linear_attn"),
            "out_proj forgotten": not_ignoring("linear_attn.out_proj"),
        },
    ),
    *defects("C07", EXPERTS, {"a layer of dense experts, one by one": dense_layer}),
    *defects("C07", DENSE, {"a dense o_proj": dense("model.layers.0.self_attn.o_proj", 128, 128)}),
    *defects(
        "C08",
        DENSE,
        {
            "a packed projection ignored": ignoring("model.layers.0.self_attn.o_proj"),
            "a regex over packed projections": ignoring(r"re:.*down_proj$"),
            "a target that covers nothing": targets("re:.*nothing.*"),
        },
    ),
    *defects(
        "C08",
        EXPERTS,
        {
            "experts ignored": ignoring(r"re:.*language_model.*mlp\.experts.*"),
            "target of another architecture": targets(r"re:.*block_sparse_moe\.experts.*"),
        },
    ),
    *defects("C08", BODY, {"a parent's name for a target": targets(f"{LAYERS}0.mlp", f"{LAYERS}1.self_attn")}),
    *defects(
        "C09",
        DENSE,
        {
            "q_proj ignored, k and v not": ignoring("model.layers.0.self_attn.q_proj"),
            "up_proj dense, gate_proj packed": both(
                dense("model.layers.1.mlp.up_proj", 256, 128), ignoring("model.layers.1.mlp.up_proj")
            ),
        },
    ),
    *defects(
        "C09",
        BODY,
        {
            "in_proj_z ignored": ignoring(r"re:.*in_proj_z$"),
            "in_proj_a ignored, in_proj_b not": not_ignoring("in_proj_b"),
        },
    ),
]


SPELLINGS = [
    *defects(
        "C10",
        EXPERTS,
        {
            "expert 0 ignored in part": ignoring(f"{OWNER}.0.up_proj"),
            "expert 1 dense": lambda b: _dense_expert(b, 1),
        },
    ),
    *defects(
        "C11",
        BODY,
        {
            "visual anchored at the checkpoint's name": instead(VISION, r"re:model\.visual.*"),
            "visual anchored with ^": instead(VISION, r"re:^model\.visual\..*"),
            "gates anchored at the checkpoint's name": both(
                not_ignoring("in_proj_"), ignoring(r"re:model\..*in_proj_[ab]$")
            ),
            "no regular expression": ignoring("re:*mlp.gate"),
            "an open bracket": ignoring("re:.*mlp.(gate$"),
        },
    ),
    *defects(
        "C11",
        EXPERTS,
        {
            "target anchored at the checkpoint's name": targets(
                r"re:model\.language_model.*experts.*", r"re:mtp.*experts.*"
            )
        },
    ),
    *defects(
        "C12",
        DENSE,
        {
            "a module of another model": ignoring("re:.*vision_tower.*"),
            "a layer that is not there": ignoring("model.layers.7.mlp.up_proj"),
            "a misspelt head": ignoring("lm-head"),
        },
    ),
    *defects("C12", GPTQ, {"names of older releases": ignoring(f"{LAYERS}0.linear_attn.in_proj_old")}),
    *defects(
        "C13",
        EXPERTS,
        {
            "gate also covers gate_proj": instead(r"re:.*\.mlp\.gate$", "re:.*gate.*"),
            "mlp also covers experts": instead(r"re:.*\.mlp\.gate$", r"re:.*language_model.*mlp.*"),
            "a whole layer": ignoring(r"re:.*model\.layers\.0\..*"),
        },
    ),
    *defects("C13", BODY, {"gate also covers gate_proj": instead(r"re:.*mlp\.gate$", "re:.*gate.*")}, also=("C09",)),
    *defects("C13", DENSE, {"the end of a name, to SGLang": ignoring("o_proj")}, also=("C12",)),
    *defects("C14", GPTQ, {"targets by name leave layers open": _open}, options=SGLANG),
    *defects(
        "C15",
        BODY,
        {
            "routers not ignored": not_ignoring(r"mlp\.gate"),
            "shared_expert_gate not ignored": not_ignoring("shared_expert_gate"),
        },
    ),
    *defects("C15", GPTQ, {"one router not ignored": not_ignoring("layers.0.mlp.gate")}),
    *defects("C15", BODY, {"a packed router": _packed_router}),
    *defects("C16", BODY, {"vision not ignored": not_ignoring("visual")}),
    *defects("C16", GPTQ, {"vision not ignored": not_ignoring("model.visual")}),
    *defects("C16", BODY, {"a parent's name for vision": instead(VISION, "model.visual")}),
    *defects(
        "C17",
        BODY,
        {
            "the head by its name": targets("lm_head", group="group_1"),
            "the head by vLLM's name": targets("language_model.lm_head", group="group_1"),
            "the head by name, before Linear": both(
                targets("lm_head", group="group_1"), grouped(group_0="group_1", group_1="group_0")
            ),
        },
    ),
    *defects(
        "C18",
        DENSE,
        {
            "sparsity with targets": quantized("sparsity_config", value={"format": "dense", "targets": ["Linear"]}),
            "a KV cache in INT8": quantized(
                "kv_cache_scheme", value={"type": "int", "num_bits": 8, "strategy": "tensor"}
            ),
        },
    ),
    *defects(
        "C19",
        DENSE,
        {"Linear in two groups": lambda b: b.quantization["config_groups"].update(group_1=scheme(4, 32))},
    ),
    *defects(
        "C20",
        DENSE,
        {"the dense head not ignored": not_ignoring("lm_head")},
        options=TRANSFORMERS,
    ),
    *defects(
        "C20",
        BODY,
        {"the packed head ignored": ignoring("lm_head"), "the packed head ignored by regex": ignoring("re:.*head$")},
    ),
    *defects("C20", BODY, {"a packed head, ignored, of no group": _orphan}),
]

ALL: list[Defect] = [*MATCHING, *SPELLINGS]
