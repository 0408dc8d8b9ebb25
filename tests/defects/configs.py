"""A quantization_config that is malformed, misplaced, or of schemes that engines do not have."""

from __future__ import annotations

from building import quantization, scheme

from defects.build import (
    Build,
    Defect,
    arguments,
    both,
    defects,
    quantized,
    unset,
)
from defects.sound import (
    BODY,
    DENSE,
    EXPERTS,
    GPTQ,
    LAYERS,
)

OWNER = f"{LAYERS}0.mlp.experts"


GROUP = ("config_groups", "group_0")


def nested(build: Build) -> None:
    """quantization_config in text_config alone."""
    build.config["text_config"]["quantization_config"] = build.config.pop("quantization_config")


def differing(build: Build) -> None:
    """A second quantization_config in text_config, of other bits."""
    build.config["text_config"]["quantization_config"] = quantization("lm_head", group_0=scheme(8, 32))


def _asymmetric(build: Build) -> None:
    """Experts with zero points, which transformers cannot unpack."""
    arguments(symmetric=False)(build)
    for module in build.modules("_proj"):
        rows, groups = build.entries[f"{module}.weight_scale"][1]
        build.entries[f"{module}.weight_zero_point"] = ("I32", (rows // 8, groups), None)


def _regrouped(build: Build, size: int) -> None:
    arguments(group_size=size)(build)
    for module in build.modules("_proj"):
        rows, words = build.entries[f"{module}.weight_packed"][1]
        build.entries[f"{module}.weight_scale"] = ("BF16", (rows, words * 8 // size), None)


WHERE = [
    *defects("C01", DENSE, {"no quantization_config": unset("quantization_config")}),
    *defects("C01", EXPERTS, {"no quantization_config": unset("quantization_config"), "in text_config only": nested}),
    *defects("C01", BODY, {"another one in text_config": differing}),
    *defects(
        "C01",
        DENSE,
        {
            "status frozen": quantized("quantization_status", value="frozen"),
            "no status": unset("quantization_config", "quantization_status"),
        },
    ),
    *defects("C01", EXPERTS, {"status frozen, experts only": quantized("quantization_status", value="frozen")}),
    *defects(
        "C02",
        EXPERTS,
        {
            "top format mixed-precision": quantized("format", value="mixed-precision"),
            "top format dense": quantized("format", value="dense"),
            "group format dense": quantized(*GROUP, "format", value="dense"),
        },
    ),
    *defects(
        "C02",
        GPTQ,
        {"dense in group and top": both(quantized("format", value="dense"), quantized(*GROUP, "format", value=None))},
    ),
    *defects(
        "C03",
        DENSE,
        {
            "int-quantized in the group": quantized(*GROUP, "format", value="int-quantized"),
            "naive-quantized in the group": quantized(*GROUP, "format", value="naive-quantized"),
        },
    ),
    *defects(
        "C03",
        BODY,
        {"INT8 head as int-quantized": quantized("config_groups", "group_1", "format", value="int-quantized")},
        also=("L01",),
    ),
    *defects(
        "C04",
        GPTQ,
        {
            "a field of the future": arguments(rotation="hadamard"),
            "a field in a group": quantized(*GROUP, "note", value=1),
        },
    ),
    *defects("C04", DENSE, {"a misspelt field": arguments(groupsize=32)}),
    *defects("C04", GPTQ, {"scale_dtype before vLLM 0.14": lambda b: None}, options={"engines": ("vllm@0.13",)}),
    *defects(
        "C05",
        EXPERTS,
        {
            "strategy tensor": both(arguments(strategy="tensor", group_size=None)),
            "asymmetric experts": _asymmetric,
            "dynamic weights": arguments(dynamic=True),
        },
    ),
    *defects(
        "C05",
        GPTQ,
        {
            "actorder group": arguments(actorder="group"),
            "a preset by name": quantized("config_groups", value={"W4A16": ["Linear"]}),
        },
    ),
    *defects("C05", DENSE, {"groups of 16": lambda build: _regrouped(build, 16)}),
]


SCHEMAS = [
    *defects(
        "S01",
        GPTQ,
        {"not the layout asked for": lambda build: None},
        options={"schema": "experts-int4-g32"},
    ),
    *defects("S01", EXPERTS, {"not the layout asked for": lambda build: None}, options={"schema": "body-int4-g128"}),
    *defects(
        "S03",
        DENSE,
        {
            "ignore that is text": quantized("ignore", value="lm_head"),
            "a group size that is text": arguments(group_size="32"),
            "targets that are text": quantized(*GROUP, "targets", value="Linear"),
            "a compression ratio that is text": quantized("global_compression_ratio", value="4x"),
        },
    ),
]

ALL: list[Defect] = [*WHERE, *SCHEMAS]
