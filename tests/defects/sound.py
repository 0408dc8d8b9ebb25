"""The sound checkpoints that the corpus breaks: small, of random weights, packed by the reference of these tests.

A mixture of experts as Qwen3.6 is stored (one linear-attention and one full-attention layer, vision tower, MTP head) in
three builds, a dense Llama, and two in formats that are none of ours.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import qwen
import reference
import torch
from building import LLAMA, LLAMA_LINEAR, Entries, Entry, quantization, scheme

from defects.build import Build

EXPERTS = "experts-int4-g32"
BODY = "body-int4-g128"
GPTQ = "gptq-int4-g128"
DENSE = "llama-int4-g32"
FP8 = "fp8-block"
AWQ = "awq"
FP8_DYNAMIC = "fp8-dynamic"

HIDDEN, INTERMEDIATE, COUNT = 128, 256, 3
TEXT = "model.language_model."
LAYERS = TEXT + "layers."
DRAFT = "mtp.layers.0."
EXPERT_TARGET = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"

SIDE_FILES: dict[str, Any] = {
    "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessorFast"},
    "video_preprocessor_config.json": {"video_processor_type": "Qwen3VLVideoProcessor"},
    "chat_template.jinja": "{{ messages }}\n",
    "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"60": {}}},
    "generation_config.json": {"eos_token_id": [3, 2]},
    "LICENSE": "Terms of the base.\n",
}


def moe_config() -> dict[str, Any]:
    """config.json of the base."""
    config: dict[str, Any] = json.loads(json.dumps(qwen.CONFIG))
    config["text_config"] |= {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "moe_intermediate_size": INTERMEDIATE,
        "shared_expert_intermediate_size": INTERMEDIATE,
        "num_experts": COUNT,
        "eos_token_id": 2,
    }
    return config


def moe_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the base, in the layout of the release: experts fused, 19 `mtp.*` tensors."""
    top = ("lm_head.weight", f"{TEXT}embed_tokens.weight")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(top, (qwen.VOCAB, HIDDEN))
    shapes |= {f"{TEXT}norm.weight": (HIDDEN,), "mtp.fc.weight": (HIDDEN, 2 * HIDDEN)}
    shapes |= {f"mtp.{name}.weight": (HIDDEN,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    for prefix, attention in (
        (f"{LAYERS}0.", qwen.linear_attention()),
        (f"{LAYERS}1.", qwen.full_attention()),
        (DRAFT, qwen.full_attention()),
    ):
        shapes |= {prefix + name: shape for name, shape in (attention | feed_forward()).items()}
    return shapes | {f"model.visual.{name}": shape for name, shape in qwen.vision().items()}


def feed_forward() -> dict[str, tuple[int, ...]]:
    """As in `qwen`, of another intermediate size and number of experts."""
    rows = {
        "mlp.gate.weight": (COUNT, HIDDEN),
        "mlp.experts.gate_up_proj": (COUNT, 2 * INTERMEDIATE, HIDDEN),
        "mlp.experts.down_proj": (COUNT, HIDDEN, INTERMEDIATE),
        "mlp.shared_expert.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.shared_expert.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.shared_expert.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    return qwen.feed_forward() | rows


@cache
def moe_weights() -> dict[str, torch.Tensor]:
    """BF16 weights of the base, the same in every run."""
    generator = torch.Generator().manual_seed(7)
    spread = {"norm": (1.0, 0.1), "bias": (0.0, 0.02)}

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        mean, width = next((s for part, s in spread.items() if part in name), (0.0, 0.1))
        return (mean + width * torch.randn(shape, generator=generator)).to(torch.bfloat16)

    return {name: draw(name, shape) for name, shape in moe_shapes().items()}


@cache
def moe_base() -> Path:
    """The dense base as a folder, for as long as the process runs."""
    folder = Path(_kept().name) / "base"
    entries = {name: _entry(tensor) for name, tensor in moe_weights().items()}
    return Build(entries, moe_config(), SIDE_FILES).write(folder)


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="defects-")


def _entry(tensor: torch.Tensor) -> Entry:
    names = {torch.bfloat16: "BF16", torch.int32: "I32", torch.int64: "I64"}
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return names[tensor.dtype], tuple(tensor.shape), data


def packed_moe(select: Callable[[str], tuple[int, int] | None]) -> Entries:
    """The base with the modules packed for which `select` gives bits and group size, experts taken apart first."""
    entries: Entries = {}
    for name, weight in moe_weights().items():
        for module, matrix in _matrices(name, weight):
            chosen = select(module)
            if chosen:
                parts = reference.packed(matrix, *chosen)
                entries |= {f"{module}.{part}": _entry(tensor) for part, tensor in parts.items()}
            else:
                entries[name] = _entry(weight)
    return entries


def _matrices(name: str, weight: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    owner, _, leaf = name.rpartition(".")
    if leaf == "gate_up_proj":
        halves = [(expert, pair.chunk(2)) for expert, pair in enumerate(weight)]
        return [(f"{owner}.{e}.{p}_proj", w) for e, pair in halves for p, w in zip(("gate", "up"), pair, strict=True)]
    if leaf == "down_proj":
        return [(f"{owner}.{expert}.down_proj", matrix) for expert, matrix in enumerate(weight)]
    return [(name.removesuffix(".weight"), weight)]


@cache
def experts_int4() -> Build:
    """Every routed expert packed in groups of 32, those of the MTP head included; all else dense."""
    entries = packed_moe(lambda module: (4, 32) if ".mlp.experts." in module else None)
    group = scheme(4, 32) | {"targets": [EXPERT_TARGET]}
    ignore: tuple[str, ...] = (
        "lm_head",
        r"re:.*\.self_attn\..*",
        r"re:.*\.linear_attn\..*",
        r"re:.*\.mlp\.shared_expert.*",
    )
    ignore += (r"re:.*\.mlp\.gate$", "re:.*visual.*", r"re:.*mtp\.fc$")
    config = moe_config() | {"quantization_config": quantization(*ignore, group_0=group)}
    return Build(entries, config, SIDE_FILES, moe_base)


BODY_DENSE = ("mtp.", "model.visual.")
NEVER = ("in_proj_a", "in_proj_b", "mlp.gate", "shared_expert_gate", "embed_tokens", "conv1d", "lm_head")
PACKABLE = ("_proj", "in_proj_qkv", "in_proj_z")


def _in_body(module: str) -> bool:
    return not module.startswith(BODY_DENSE) and not module.endswith(NEVER) and module.endswith(PACKABLE)


@cache
def body_int4() -> Build:
    """The body packed in groups of 128 by `Linear`, the head INT8, the MTP head dense."""

    def select(module: str) -> tuple[int, int] | None:
        return (8, 128) if module == "lm_head" else (4, 128) if _in_body(module) else None

    groups = {"group_0": scheme(4, 128), "group_1": scheme(8, 128) | {"targets": ["re:.*lm_head$"]}}
    ignore: tuple[str, ...] = ("re:^mtp.*", "re:.*mtp.*", "re:.*visual.*", "re:.*in_proj_a$", "re:.*in_proj_b$")
    ignore += (r"re:.*mlp\.gate$", "re:.*shared_expert_gate$")
    config = moe_config() | {"quantization_config": quantization(*ignore, **groups)}
    return Build(packed_moe(select), config, SIDE_FILES, moe_base)


def gptq_dense() -> list[str]:
    """Every dense Linear by name, as llm-compressor's oneshot spells the ignore list out: without the MTP head."""
    shapes = moe_shapes()
    weights = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
    embeddings = ("embed_tokens", "pos_embed", "A_log", "dt_bias")
    linears = (name for name in weights if not name.endswith(embeddings) and not name.startswith("mtp."))
    return sorted(name for name in linears if not _in_gptq(name))


def _in_gptq(module: str) -> bool:
    return _in_body(module) and ".linear_attn." not in module


@cache
def gptq_int4() -> Build:
    """Experts and attention packed, the config as llm-compressor 0.14 writes it, the MTP head grafted and ignored."""
    weights: dict[str, Any] = {
        "actorder": "static",
        "block_structure": None,
        "dynamic": False,
        "group_size": 128,
        "num_bits": 4,
        "observer": "memoryless_minmax",
        "observer_kwargs": {},
        "scale_dtype": None,
        "strategy": "group",
        "symmetric": True,
        "type": "int",
        "zp_dtype": None,
    }
    group = {"format": "pack-quantized", "input_activations": None, "output_activations": None}
    written = quantization(*gptq_dense(), "re:^mtp.*", group_0=group | {"targets": ["Linear"], "weights": weights})
    written |= {"global_compression_ratio": None, "kv_cache_scheme": None, "sparsity_config": {}}
    written |= {"transform_config": {}, "version": "0.19.0"}
    entries = packed_moe(lambda module: (4, 128) if _in_gptq(module) else None)
    return Build(entries, moe_config() | {"quantization_config": written}, SIDE_FILES, moe_base)


@cache
def dense_int4() -> Build:
    """A dense Llama, every Linear of its layers packed in groups of 32."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> torch.Tensor:
        return (0.1 * torch.randn(shape, generator=generator)).to(torch.bfloat16)

    entries = {f"{name}.weight": _entry(draw(64, 128)) for name in ("lm_head", "model.embed_tokens")}
    entries["model.norm.weight"] = _entry(draw(128))
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            entries[f"{prefix}{norm}.weight"] = _entry(draw(128))
        for name, shape in LLAMA_LINEAR:
            parts = reference.packed(draw(*shape), 4, 32)
            entries |= {f"{prefix}{name}.{part}": _entry(tensor) for part, tensor in parts.items()}
    return Build(entries, LLAMA | {"quantization_config": quantization("lm_head")})


def _llama_tops() -> Entries:
    entries: Entries = {f"{name}.weight": ("BF16", (64, 128), None) for name in ("lm_head", "model.embed_tokens")}
    entries["model.norm.weight"] = ("BF16", (128,), None)
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            entries[f"model.layers.{layer}.{norm}.weight"] = ("BF16", (128,), None)
    return entries


@cache
def fp8_block() -> Build:
    """A Llama in blocks of FP8, as DeepSeek and Qwen release them."""
    entries = _llama_tops()
    for layer in range(2):
        for name, (rows, columns) in LLAMA_LINEAR:
            module = f"model.layers.{layer}.{name}"
            entries[f"{module}.weight"] = ("F8_E4M3", (rows, columns), None)
            entries[f"{module}.weight_scale_inv"] = ("F32", (-(-rows // 128), -(-columns // 128)), None)
    method = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return Build(entries, LLAMA | {"quantization_config": method})


@cache
def awq() -> Build:
    """A Llama in AutoAWQ's format: columns packed along dim 1, zero points and F16 scales by group."""
    entries = _llama_tops()
    for layer in range(2):
        for name, (rows, columns) in LLAMA_LINEAR:
            module = f"model.layers.{layer}.{name}"
            entries[f"{module}.qweight"] = ("I32", (columns, rows // 8), None)
            entries[f"{module}.qzeros"] = ("I32", (columns // 64, rows // 8), None)
            entries[f"{module}.scales"] = ("F16", (columns // 64, rows), None)
    method = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
    return Build(entries, LLAMA | {"quantization_config": method})


@cache
def fp8_dynamic() -> Build:
    """A Llama in FP8 by compressed-tensors, one scale a row, activations quantized as they come."""
    entries = _llama_tops()
    for layer in range(2):
        for name, (rows, columns) in LLAMA_LINEAR:
            module = f"model.layers.{layer}.{name}"
            entries[f"{module}.weight"] = ("F8_E4M3", (rows, columns), None)
            entries[f"{module}.weight_scale"] = ("BF16", (rows, 1), None)
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": "float-quantized"}
    written = quantization("lm_head", group_0=group) | {"format": "float-quantized"}
    return Build(entries, LLAMA | {"quantization_config": written})


SOUND: dict[str, Callable[[], Build]] = {
    EXPERTS: experts_int4,
    BODY: body_int4,
    GPTQ: gptq_int4,
    DENSE: dense_int4,
    FP8: fp8_block,
    AWQ: awq,
    FP8_DYNAMIC: fp8_dynamic,
}
FOREIGN = (FP8, AWQ, FP8_DYNAMIC)
