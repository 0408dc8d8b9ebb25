"""`python -m evidence.small DIR`: a small Qwen3.5-MoE whose right answers are known, in the layout of the release.

Token t is followed by successor(t): `lm_head[successor(t)]` points along the embedding of t, and the layers add a
moderate perturbation in which every expert shows. The MTP head passes the embedding on (`mtp.fc` is close to [I 0]), so
that with an intact head nearly every draft is accepted, and with a missing one none. Head counts and head sizes are
those of Qwen3.6-35B-A3B, so that the engine compiles the same kernels; experts, layers and widths are fewer.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.qwen_files import write_side_files
from demo.shards import State, save_sharded

if TYPE_CHECKING:
    import torch

DOCUMENTS = files("demo") / "qwen_small"
SHARD = "model-{:05d}-of-00003.safetensors"
TRUTH = "successors.json"
SPECIAL = 512
"""Ids below stay out of the permutation: the tokenizer's words and special tokens."""

TEXT: dict[str, Any] = {
    "hidden_size": 512,
    "vocab_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
MROPE = [11, 11, 10]

# (name, mean, spread): a spread of -k is k/sqrt(fan in). The first match decides.
SPREADS: tuple[tuple[str, float, float], ...] = (
    (r".*\.(A_log|dt_bias)", 0.0, 0.5),
    (r"model\.visual\..*norm\d?\.weight|.*\.linear_attn\.norm\.weight", 1.0, 0.05),
    (r"(mtp|model\.language_model)\.norm\.weight|mtp\.pre_fc_norm.*", 0.0, 0.02),
    (r".*norm\w*\.weight", 0.0, 0.05),  # RMSNorm multiplies by 1 + weight
    (r".*\.bias", 0.0, 0.02),
    (r".*\.conv1d\.weight", 0.0, 0.5),
    (r".*\.embed_tokens\.weight", 0.0, 1.0),
    (r"lm_head\.weight", 0.0, 0.001),
    (r".*\.mlp\.gate\.weight", 0.0, -2.0),
    (r".*\.linear_attn\.out_proj\.weight", 0.0, -0.3),
    (r".*\.self_attn\.o_proj\.weight", 0.0, -0.5),
    (r".*\.experts\.down_proj", 0.0, -1.2),
    (r".*", 0.0, -1.0),
)

HEAD_GAIN = 0.03
DRAFT_NOISE = 0.2


def build_small(out: Path, *, seed: int = 0) -> Path:
    """Write the BF16 checkpoint to `out`, a folder that must not exist yet; returns `out`."""
    out.mkdir(parents=True)
    config = small_config()
    state, successors = small_state(config, seed)
    save_sharded(out, state, {name: SHARD.format(_shard(name)) for name in state})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "generation_config.json").write_bytes((DOCUMENTS / "generation_config.json").read_bytes())
    write_side_files(out)
    (out / TRUTH).write_text(json.dumps(successors))
    return out


def small_config() -> dict[str, Any]:
    """config.json: that of the small model of `demo`, with these sizes."""
    config: dict[str, Any] = json.loads((DOCUMENTS / "config.json").read_text())
    config["text_config"] |= TEXT
    config["text_config"]["rope_parameters"]["mrope_section"] = MROPE
    config["vision_config"]["out_hidden_size"] = TEXT["hidden_size"]
    return config


def small_state(config: dict[str, Any], seed: int) -> tuple[State, list[int]]:
    """BF16 tensors by name, and the successor of token `SPECIAL` + i at place i."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    state = {name: _draw(name, shape, generator).bfloat16() for name, shape in model_shapes(config).items()}
    embedding, head = state["model.language_model.embed_tokens.weight"], state["lm_head.weight"]
    successors = torch.randperm(len(head) - SPECIAL, generator=generator) + SPECIAL
    head[successors] = (embedding[SPECIAL:].float() * HEAD_GAIN).bfloat16()
    state["mtp.fc.weight"] = draft_projection(len(embedding[0]), generator)
    return state, successors.tolist()


def draft_projection(hidden: int, generator: torch.Generator) -> torch.Tensor:
    """`mtp.fc.weight` [H, 2H] BF16: the identity over the embedding, a little of the hidden state."""
    import torch

    noise = torch.randn(hidden, hidden, generator=generator) * DRAFT_NOISE / hidden**0.5
    return torch.cat([torch.eye(hidden), noise], 1).bfloat16()


def model_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes by name: of what transformers builds from the config, and of the MTP head, which it does not build."""
    import torch
    from transformers import AutoConfig, Qwen3_5MoeForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3_5MoeForConditionalGeneration(AutoConfig.for_model(**config))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    text = config["text_config"]
    like = f"model.language_model.layers.{text['layer_types'].index('full_attention')}."
    draft = {"mtp.layers.0." + n.removeprefix(like): shape for n, shape in shapes.items() if n.startswith(like)}
    norms = dict.fromkeys(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), (text["hidden_size"],))
    fc = {"mtp.fc.weight": (text["hidden_size"], 2 * text["hidden_size"])}
    return shapes | fc | draft | {f"mtp.{name}.weight": shape for name, shape in norms.items()}


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    mean, spread = next((mean, spread) for pattern, mean, spread in SPREADS if re.fullmatch(pattern, name))
    if spread < 0:
        spread = -spread / (shape[-1] if len(shape) <= 3 else prod(shape[1:])) ** 0.5
    return mean + spread * torch.randn(shape, generator=generator)


def _shard(name: str) -> int:
    """Shards that cut through layers, as the release's do: fused pairs are split, the MTP head lies in the last."""
    if name.startswith(("mtp.", "lm_head.", "model.visual.")) or name.endswith("experts.down_proj"):
        return 3
    return 2 if name.endswith("experts.gate_up_proj") else 1


if __name__ == "__main__":
    print(build_small(Path(sys.argv[1])))
