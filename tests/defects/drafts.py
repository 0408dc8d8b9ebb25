"""The MTP head and the output head, broken; and what running engines were seen to get wrong."""

from __future__ import annotations

import json
from pathlib import Path

from building import INDEX, Entries, edit_json, write_shard

from defects.build import (
    Build,
    Defect,
    Edit,
    arguments,
    both,
    defects,
    drop,
    ignoring,
    not_ignoring,
    recast,
    setting,
)
from defects.packed import pack_as
from defects.sound import BODY, DRAFT, EXPERTS, GPTQ, HIDDEN, INTERMEDIATE, moe_weights

SHARDS = [f"{DRAFT}self_attn.{part}_proj" for part in "qkvo"]
SHARED = [f"{DRAFT}mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")]
GATES = [f"{DRAFT}mlp.gate", f"{DRAFT}mlp.shared_expert_gate"]
EXPERT_NAMES = [f"{DRAFT}mlp.experts.{e}.{p}_proj" for e in range(3) for p in ("gate", "up", "down")]


def ignored_as(*entries: str) -> Edit:
    """The MTP head ignored by these entries alone."""
    return both(not_ignoring("mtp"), ignoring(*entries))


def packed(*modules: str) -> Edit:
    """Linear modules of the MTP head packed in groups of 128, and not ignored."""

    def edit(build: Build) -> None:
        for module in modules:
            rows, columns = moe_weights()[f"{module}.weight"].shape
            pack_as(build, module, rows, columns)

    return edit


def experts_packed(build: Build) -> None:
    """The draft's experts packed one by one, whatever is ignored."""
    drop(f"{DRAFT}mlp.experts.gate_up_proj", f"{DRAFT}mlp.experts.down_proj")(build)
    for module in EXPERT_NAMES:
        rows, columns = (HIDDEN, INTERMEDIATE) if module.endswith("down_proj") else (INTERMEDIATE, HIDDEN)
        build.entries[f"{module}.weight"] = ("BF16", (rows, columns), None)
        pack_as(build, module, rows, columns)


def stray_head(folder: Path) -> None:
    """The MTP head in a file of its own that the index does not name, as a graft by hand leaves it."""
    head: Entries = {}
    for path in sorted(folder.glob("*.safetensors")):
        entries = headers_of(path)
        head |= {name: entry for name, entry in entries.items() if name.startswith("mtp.")}
        write_shard(path, {name: entry for name, entry in entries.items() if name not in head})
    write_shard(folder / "model-mtp.safetensors", head)
    edit_json(folder / INDEX, lambda document: [document["weight_map"].pop(name) for name in head])
    edit_json(folder / INDEX, lambda document: document["metadata"].pop("total_size"))


def headers_of(path: Path) -> Entries:
    """The tensors of a shard, without their data."""
    with path.open("rb") as file:
        document = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    document.pop("__metadata__", None)
    return {name: (one["dtype"], tuple(one["shape"]), None) for name, one in document.items()}


HEADS = [
    *defects(
        "M01",
        BODY,
        {
            "no MTP head": drop("mtp"),
            "no mtp.fc": drop("mtp.fc"),
            "no final norm": drop("mtp.norm"),
            "experts alone": drop("mtp.fc", "mtp.norm", f"{DRAFT}self_attn"),
            "no experts": drop(f"{DRAFT}mlp.experts"),
            "a norm of its layer": drop(f"{DRAFT}input_layernorm"),
        },
    ),
    *defects("M01", GPTQ, {"no MTP head": drop("mtp"), "no o_proj": drop(f"{DRAFT}self_attn.o_proj")}),
    *defects(
        "M01", EXPERTS, {"two layers declared, one stored": setting("text_config", "mtp_num_hidden_layers", value=2)}
    ),
    *defects("M01", EXPERTS, {"no MTP head": both(drop("mtp"), not_ignoring("mtp"))}, based=True),
    *defects(
        "M01",
        BODY,
        {"stored, and none declared": setting("text_config", "mtp_num_hidden_layers", value=0)},
    ),
    *defects(
        "M02",
        BODY,
        {
            "mtp.fc packed": both(packed("mtp.fc"), ignored_as("re:mtp.layers.*")),
            "attention packed": both(packed(*SHARDS), ignored_as("mtp.fc", "re:mtp.*mlp.*")),
            "shared expert packed": both(packed(*SHARED), ignored_as("mtp.fc", "re:mtp.*(attn|experts|gate$).*")),
        },
    ),
    *defects(
        "M03",
        BODY,
        {
            "not ignored at all": not_ignoring("mtp"),
            "the plain word mtp": ignored_as("mtp"),
            "only its attention": ignored_as("re:mtp.*self_attn.*"),
            "mtp.fc forgotten": ignored_as("re:mtp.layers.*"),
            "a parent's name for the experts": ignored_as(
                "mtp.fc", "re:mtp.*attn.*", "re:mtp.*shared.*", f"{DRAFT}mlp.experts"
            ),
        },
    ),
    *defects("M03", GPTQ, {"not ignored at all": not_ignoring("re:^mtp")}),
    *defects(
        "M04",
        BODY,
        {
            "every Linear by its name": ignored_as("mtp.fc", *SHARDS, *SHARED, *GATES, *EXPERT_NAMES),
        },
    ),
    *defects(
        "M04",
        BODY,
        {"every Linear by its name, SGLang 0.5.20": ignored_as("mtp.fc", *SHARDS, *SHARED, *GATES, *EXPERT_NAMES)},
        options={"engines": ("sglang@0.5.20",)},
    ),
    Defect("the head in a file that the index does not name", BODY, "M05", damage=stray_head, also=("F05",)),
    *defects("C08", BODY, {"packed MTP experts, still ignored": experts_packed}),
    *defects("C08", EXPERTS, {"packed MTP experts, ignored as a whole": ignoring("re:^mtp.*")}),
    *defects(
        "M03",
        BODY,
        {
            "a dot and a star, but no re:": ignored_as("mtp.*"),
            "a prefix that no engine has": ignored_as(r"re:model\.mtp.*"),
        },
        also=("C12",),
    ),
    *defects("I02", BODY, {"mtp.fc of half the width": recast("mtp.fc.weight", shape=(HIDDEN, HIDDEN))}),
    *defects("I03", BODY, {"the MTP head in F16": recast("mtp.fc.weight", "F16")}, based=True),
]


def padded_head(build: Build) -> None:
    """Rows for tokens that the vocabulary has not."""
    build.entries["lm_head.weight_packed"] = ("I32", (128, HIDDEN // 4), None)
    build.entries["lm_head.weight_scale"] = ("BF16", (128, 1), None)


OUTPUT = [
    *defects(
        "L01",
        BODY,
        {"the head padded": padded_head},
    ),
    *defects("L01", BODY, {"vocab_size counts more": setting("text_config", "vocab_size", value=128)}, also=("I02",)),
    *defects("L02", BODY, {"vLLM 0.19": lambda b: None}, options={"engines": ("vllm@0.19",)}),
    *defects("L02", BODY, {"SGLang 0.5.18": lambda b: None}, options={"engines": ("sglang@0.5.18",)}),
]


def int8_experts(group_size: int | None) -> Edit:
    """Experts in 8 bits, one scale a row, with this group_size in the config."""

    def edit(build: Build) -> None:
        weights = build.quantization["config_groups"]["group_0"]["weights"]
        weights |= {"num_bits": 8, "strategy": "channel", "group_size": group_size}
        for module in build.modules("_proj"):
            rows, words = build.entries[f"{module}.weight_packed"][1]
            build.entries[f"{module}.weight_packed"] = ("I32", (rows, words * 2), None)
            build.entries[f"{module}.weight_scale"] = ("BF16", (rows, 1), None)

    return edit


def int8_by_groups(build: Build) -> None:
    arguments(num_bits=8)(build)
    for module in build.modules("_proj"):
        rows, words = build.entries[f"{module}.weight_packed"][1]
        build.entries[f"{module}.weight_packed"] = ("I32", (rows, words * 2), None)


def one_group(build: Build) -> None:
    """Groups as long as an expert's intermediate size, 256, and hidden sizes beyond it by the config's own account."""
    arguments(group_size=64)(build)
    for module in build.modules("_proj"):
        rows, words = build.entries[f"{module}.weight_packed"][1]
        build.entries[f"{module}.weight_scale"] = ("BF16", (rows, words * 8 // 64), None)


OBSERVED = [
    *defects(
        "O01",
        EXPERTS,
        {"INT8 experts by channel, group_size null": int8_experts(None), "INT8 experts in groups": int8_by_groups},
    ),
    *defects("O02", EXPERTS, {"groups of 64 on four ranks": one_group}, options={"tp": 4}),
]

ALL: list[Defect] = [*HEADS, *OUTPUT, *OBSERVED]
