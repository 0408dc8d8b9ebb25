"""A small Qwen3.5-MoE with vision tower and MTP head as names and shapes, and configs that pack parts of it.

Written from the published layout (Qwen3.6-35B-A3B), not from the code under test. Data are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from building import Entries, pack, quantization, scheme, write_checkpoint

from checkpoint import Checkpoint, Document, survey
from verify.case import Case

LAYERS, EXPERTS = 4, 4
HIDDEN, INTERMEDIATE, VOCAB, VISION = 128, 64, 64, 64

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "image_token_id": 60,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "moe_intermediate_size": INTERMEDIATE,
        "shared_expert_intermediate_size": INTERMEDIATE,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    },
    "vision_config": {
        "model_type": "qwen3_5_moe",
        "depth": 1,
        "hidden_size": VISION,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 16,
        "in_channels": 3,
    },
}

IGNORE = (
    r"re:.*\.self_attn\..*",
    r"re:.*\.linear_attn\..*",
    r"re:.*\.mlp\.shared_expert.*",
    r"re:.*\.mlp\.gate$",
    "re:.*visual.*",
)
"""What a build with packed experts leaves dense, besides MTP and head."""

SOUND = (*IGNORE, "re:.*mtp.*", "lm_head")
LAYER = "model.language_model.layers."
DRAFT = "mtp.layers.0."


def entries() -> Entries:
    """Every tensor in the release's layout: BF16, experts fused in 3-D parameters, 19 `mtp.*` tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.language_model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "mtp.norm.weight": (HIDDEN,),
        "mtp.pre_fc_norm_embedding.weight": (HIDDEN,),
        "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        attention = full_attention if layer % 4 == 3 else linear_attention
        shapes |= {f"{LAYER}{layer}.{name}": shape for name, shape in (attention() | feed_forward()).items()}
    shapes |= {DRAFT + name: shape for name, shape in (full_attention() | feed_forward()).items()}
    shapes |= {f"model.visual.{name}": shape for name, shape in vision().items()}
    return {name: ("BF16", shape, None) for name, shape in shapes.items()}


def full_attention() -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_proj.weight": (256, HIDDEN),
        "self_attn.k_proj.weight": (64, HIDDEN),
        "self_attn.v_proj.weight": (64, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, 128),
        "self_attn.q_norm.weight": (32,),
        "self_attn.k_norm.weight": (32,),
    }


def linear_attention() -> dict[str, tuple[int, ...]]:
    return {
        "linear_attn.in_proj_qkv.weight": (256, HIDDEN),
        "linear_attn.in_proj_z.weight": (128, HIDDEN),
        "linear_attn.in_proj_a.weight": (4, HIDDEN),
        "linear_attn.in_proj_b.weight": (4, HIDDEN),
        "linear_attn.conv1d.weight": (256, 1, 4),
        "linear_attn.A_log": (4,),
        "linear_attn.dt_bias": (4,),
        "linear_attn.norm.weight": (32,),
        "linear_attn.out_proj.weight": (HIDDEN, 128),
    }


def feed_forward() -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate.weight": (EXPERTS, HIDDEN),
        "mlp.experts.gate_up_proj": (EXPERTS, 2 * INTERMEDIATE, HIDDEN),
        "mlp.experts.down_proj": (EXPERTS, HIDDEN, INTERMEDIATE),
        "mlp.shared_expert.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.shared_expert.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.shared_expert.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "mlp.shared_expert_gate.weight": (1, HIDDEN),
    }


def vision() -> dict[str, tuple[int, ...]]:
    block = "blocks.0."
    linear = {
        "merger.linear_fc1": (256, 256),
        "merger.linear_fc2": (HIDDEN, 256),
        block + "attn.qkv": (3 * VISION, VISION),
        block + "attn.proj": (VISION, VISION),
        block + "mlp.linear_fc1": (128, VISION),
        block + "mlp.linear_fc2": (VISION, 128),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    for norm in ("merger.norm", block + "norm1", block + "norm2"):
        shapes |= {f"{norm}.weight": (VISION,), f"{norm}.bias": (VISION,)}
    shapes |= {"patch_embed.proj.weight": (VISION, 3, 2, 4, 4), "patch_embed.proj.bias": (VISION,)}
    return shapes | {"pos_embed.weight": (16, VISION)}


Select = Callable[[str], bool]


def body_experts(module: str) -> bool:
    """The routed experts of the main model: what a build with packed experts packs."""
    return ".mlp.experts." in module and not module.startswith("mtp.")


def stored(folder: Path, select: Select = body_experts, bits: int = 4, group_size: int | None = 32) -> Checkpoint:
    """The model with the modules that `select` names packed, under a sound config for packed experts."""
    return survey(write_checkpoint(folder, pack(entries(), select, bits, group_size), config(*SOUND)))


def config(*ignore: str, **groups: dict[str, Any]) -> dict[str, Any]:
    """config.json with a `quantization_config`, by default INT4 in groups of 32 for every Linear."""
    groups = groups or {"group_0": scheme(4, 32)}
    return deepcopy(CONFIG) | {"quantization_config": quantization(*ignore, **groups)}


def group(*targets: str, bits: int = 4, group_size: int | None = 32) -> dict[str, Any]:
    return scheme(bits, group_size) | {"targets": list(targets)}


def judged(checkpoint: Checkpoint, document: dict[str, Any], *engines: str, **options: Any) -> Case:
    """A case of the same tensors under another config.json."""
    other = replace(checkpoint, config_document=Document.of(document))
    return Case(other, engines=engines or ("vllm", "sglang", "transformers"), **options)


def astray(case: Case) -> dict[str, str]:
    """Module -> what it is stored as, of those that the case's one engine builds otherwise."""
    (resolved,) = case.resolved
    packed = {name for name, module in case.modules.items() if "weight_packed" in module.tensors}
    wrong = [one.module for one in resolved if (one.built == "packed") != (one.module in packed)]
    return {module: "packed" if module in packed else "dense" for module in wrong}
