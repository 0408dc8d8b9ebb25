"""Packed modules whose parts contradict each other or their config group."""

from __future__ import annotations

from building import int64s

from defects.build import Build, Defect, Edit, add, arguments, both, defects, drop, recast
from defects.sound import BODY, DENSE, DRAFT, EXPERTS, INTERMEDIATE, TEXT
from defects.tensors import EXPERT, UP, VISION

PARTS = ("weight_packed", "weight_scale", "weight_shape")


def unpack(module: str, rows: int, columns: int) -> Edit:
    """The module dense instead of packed."""
    return both(drop(*(f"{module}.{part}" for part in PARTS)), add(f"{module}.weight", "BF16", (rows, columns)))


def pack_as(build: Build, module: str, rows: int, columns: int) -> None:
    group = 32 if module.startswith("model.embed") else 128
    drop(f"{module}.weight")(build)
    build.entries[f"{module}.weight_packed"] = ("I32", (rows, columns // 8), None)
    build.entries[f"{module}.weight_scale"] = ("BF16", (rows, columns // group), None)
    build.entries[f"{module}.weight_shape"] = ("I64", (2,), int64s(rows, columns))


def _packed_vision(build: Build) -> None:
    """`attn.proj` of the only block packed by a group that reaches it, and not ignored."""
    pack_as(build, f"{VISION}merger.linear_fc2", 128, 256)
    ignore = build.quantization["ignore"]
    ignore[ignore.index("re:.*visual.*")] = "re:.*visual.(blocks|patch|pos|merger.(norm|linear_fc1)).*"


TRIPLES = [
    *defects(
        "T01",
        DENSE,
        {f"no {part}": drop(f"{UP}.{part}") for part in PARTS}
        | {"weight_packed alone": drop(f"{UP}.weight_scale", f"{UP}.weight_shape")},
    ),
    *defects(
        "T01",
        EXPERTS,
        {
            "an expert without scale": drop(f"{EXPERT}down_proj.weight_scale"),
            "no weight_shape anywhere": lambda b: drop(*(n for n in b.entries if n.endswith("weight_shape")))(b),
            "an expert of the draft without scale": drop(f"{DRAFT}mlp.experts.0.up_proj.weight_scale"),
        },
    ),
    *defects("T01", BODY, {"the head without scale": drop("lm_head.weight_scale")}),
    *defects("T02", DENSE, {"a dense weight beside the packed": add(f"{UP}.weight", shape=(256, 128))}),
    *defects("T02", EXPERTS, {"a dense expert beside the packed": add(f"{EXPERT}up_proj.weight", shape=(256, 128))}),
    *defects("T02", BODY, {"a dense head beside the packed": add("lm_head.weight", shape=(64, 128))}),
    *defects(
        "T03",
        DENSE,
        {
            "packed as bytes": recast(f"{UP}.weight_packed", "U8", (256, 64)),
            "scales as integers": recast(f"{UP}.weight_scale", "I32"),
            "scales in FP8": recast(f"{UP}.weight_scale", "F8_E4M3"),
            "weight_shape in I32": recast(f"{UP}.weight_shape", "I32"),
            "weight_shape of three": recast(f"{UP}.weight_shape", shape=(3,)),
        },
    ),
    *defects(
        "T04",
        DENSE,
        {
            "8 bits under a group of 4": recast(f"{UP}.weight_packed", shape=(256, 32)),
            "half of the columns": recast(f"{UP}.weight_packed", shape=(256, 8)),
            "rows too many": recast(f"{UP}.weight_packed", shape=(512, 16)),
            "transposed": recast(f"{UP}.weight_packed", shape=(16, 256)),
        },
    ),
    *defects(
        "T04", EXPERTS, {"an expert half as wide": recast(f"{EXPERT}up_proj.weight_packed", shape=(INTERMEDIATE, 8))}
    ),
    *defects("T04", BODY, {"the head in 4 bits": recast("lm_head.weight_packed", shape=(64, 16))}),
    *defects(
        "T05",
        DENSE,
        {
            "scales of groups of 64": recast(f"{UP}.weight_scale", shape=(256, 2)),
            "one scale a row": recast(f"{UP}.weight_scale", shape=(256, 1)),
            "scales transposed": recast(f"{UP}.weight_scale", shape=(4, 256)),
            "scales without rows": recast(f"{UP}.weight_scale", shape=(4,)),
        },
    ),
    *defects(
        "T05",
        EXPERTS,
        {
            "config says groups of 128": arguments(group_size=128),
            "an expert's scales of groups of 128": recast(f"{EXPERT}up_proj.weight_scale", shape=(INTERMEDIATE, 1)),
        },
    ),
    *defects("T05", BODY, {"config says groups of 64": arguments(group_size=64)}),
    *defects(
        "T07",
        EXPERTS,
        {"16 ranks": lambda build: None},
        options={"tp": 16},
    ),
    *defects(
        "T07",
        BODY,
        {"2 ranks": lambda build: None, "8 ranks": lambda b: None},
        options={"tp": 2, "engines": ("sglang",)},
    ),
    *defects("T07", DENSE, {"8 ranks": lambda build: None}, options={"tp": 8}),
    *defects(
        "T08", DENSE, {"vLLM 0.23 on two ranks": lambda build: None}, options={"tp": 2, "engines": ("vllm@0.23",)}
    ),
    *defects(
        "T09",
        DENSE,
        {
            "zero points under a symmetric group": add(f"{UP}.weight_zero_point", "I32", (32, 4)),
            "no zero points under an asymmetric group": arguments(symmetric=False),
        },
    ),
    *defects("T10", BODY, {"a packed layer of the vision tower": _packed_vision}),
    *defects("T11", BODY, {"a packed embedding": lambda build: pack_as(build, f"{TEXT}embed_tokens", 64, 128)}),
    *defects("T11", DENSE, {"a packed embedding": lambda build: pack_as(build, "model.embed_tokens", 64, 128)}),
]

ALL: list[Defect] = TRIPLES
