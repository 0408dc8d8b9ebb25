"""Fifteen public reports of broken quantized checkpoints, each rebuilt small: the symptom in the name, the cause found.

The threads are upstream's; what they claim was not reproduced with their models, but with these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from building import INDEX, edit_json, write_shard

from defects.build import Build, Defect, Edit, both, drop, filled, ignoring, instead, not_ignoring, rename
from defects.contents import NAN
from defects.drafts import EXPERT_NAMES, GATES, SHARDS, SHARED, headers_of, ignored_as
from defects.files import FIRST, SECOND
from defects.sound import BODY, EXPERTS, GPTQ, LAYERS
from defects.tensors import packed_under_fused_names

VLLM_24: dict[str, Any] = {"engines": ("vllm@0.24",)}


def older_names(build: Build) -> None:
    """The linear attention listed as the text-only class called it, with in_proj_qkvz and in_proj_ba in one piece."""
    not_ignoring("linear_attn")(build)
    leaves = ("in_proj_qkvz", "in_proj_ba", "out_proj")
    ignoring(*(f"model.layers.0.linear_attn.{leaf}" for leaf in leaves))(build)


def nested(build: Build) -> None:
    rename(lambda name: name.replace("model.language_model.", "model.language_model.language_model."))(build)


def unchanged(build: Build) -> None:
    """Sound, but not for the engine that is asked for."""


def stale(folder: Path) -> None:
    """A router of another export left in a listed shard; the index names the other shard for it."""
    first, second = (folder / name for name in (FIRST, SECOND))
    held = headers_of(second)
    name = next(name for name in headers_of(first) if name.endswith(".mlp.gate.weight"))
    write_shard(second, {name: headers_of(first)[name], **held})
    edit_json(folder / INDEX, lambda document: document["metadata"].pop("total_size"))


def _case(number: int, report: str, symptom: str, on: str, rule: str, edit: Edit, says: str, **more: Any) -> Defect:
    return Defect(f"A{number}: {symptom}", on, rule, edit=edit, report=report, says=says, **more)


ALL: list[Defect] = [
    _case(
        1,
        "vllm#53387",
        "no module or parameter named 'fc.weight' in the MTP model",
        BODY,
        "M03",
        ignored_as("re:mtp.layers.*"),
        "There is no module or parameter named",
    ),
    _case(
        2,
        "vllm#41994",
        "KeyError layers.0.mlp.experts.w2_weight",
        BODY,
        "M03",
        ignored_as("mtp.fc", *SHARDS, *SHARED, *GATES),
        "w2_weight",
        options=VLLM_24,
    ),
    _case(
        3,
        "sglang#35797",
        "accept length 1.0",
        BODY,
        "M04",
        ignored_as("mtp.fc", *SHARDS, *SHARED, *GATES, *EXPERT_NAMES),
        "do not reach the draft's fused layers",
        options={"engines": ("sglang@0.5.20",)},
    ),
    _case(
        4,
        "sglang#38574",
        "No compressed-tensors compatible scheme was found",
        BODY,
        "M03",
        not_ignoring("mtp"),
        "No compressed-tensors compatible scheme",
        options={"engines": ("sglang",)},
    ),
    _case(
        5,
        "z-lab/paroquant#47",
        "0 % acceptance",
        EXPERTS,
        "M01",
        both(drop("mtp"), not_ignoring("mtp")),
        "0 % acceptance",
    ),
    Defect(
        "A6: garbage, and no error",
        GPTQ,
        "F04",
        damage=lambda folder: (folder / FIRST).unlink(),
        report="vllm#34859, vllm#34930",
        says="uninitialised memory",
    ),
    Defect(
        "A7: wrong weights from a stale shard",
        EXPERTS,
        "F08",
        damage=stale,
        report="vllm#54230",
        says="the last file wins",
    ),
    _case(8, "vllm#40252", "garbage from a stale ignore list", GPTQ, "C07", older_names, "not ignored", also=("C12",)),
    _case(
        9,
        "llm-compressor#1820",
        "no module or parameter named 'lm_head.weight_packed'",
        BODY,
        "L02",
        unchanged,
        "lm_head.weight_packed",
        options={"engines": ("vllm@0.19",)},
    ),
    _case(
        10,
        "sglang#35358",
        "'!!!!' for every answer",
        BODY,
        "L02",
        unchanged,
        "uninitialised memory",
        options={"engines": ("sglang@0.5.18",)},
    ),
    _case(11, "llm-compressor#2568", "KeyError w2_weight_packed", EXPERTS, "F15", nested, "KeyError"),
    _case(
        12,
        "transformers#47407",
        "MISSING and UNEXPECTED, random experts",
        EXPERTS,
        "I07",
        packed_under_fused_names("_"),
        "random experts in transformers",
    ),
    _case(
        13,
        "compressed-tensors#832",
        "token 0 for ever",
        BODY,
        "N01",
        filled(f"{LAYERS}0.mlp.experts.1.up_proj.weight_scale", NAN, 1),
        "NaN",
        options={"level": "full"},
    ),
    _case(
        14,
        "llm-compressor#2641",
        "'!!!!' for every image",
        BODY,
        "C11",
        instead("re:.*visual.*", r"re:model\.visual.*"),
        "covers the names in the checkpoint, not vLLM's",
    ),
    _case(
        15,
        "llm-compressor#2057, llm-compressor#2234",
        "Extra inputs are not permitted",
        GPTQ,
        "C04",
        unchanged,
        "Extra inputs are not permitted",
        options={"engines": ("vllm@0.13",)},
    ),
]
