"""A small Qwen3.5-MoE (text and vision) in the layout of the real release, about 20 MB.

transformers gives names and shapes; the values come from a seed. They mean something: token t is followed by a fixed
permutation of t, through layers whose experts move the logits visibly, so a wrong weight shows in the output.

transformers' own `save_pretrained` takes the fused experts apart and knows no draft head (`mtp.*`), so the state is
written here: fused 3-D experts without `.weight`, the draft head, and shards that cut through layers.
Usable as `python -m demo.qwen_moe build DIR` and `python -m demo.qwen_moe compare BASE OTHER`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from demo.qwen_files import write_side_files
from demo.shards import State, save_sharded

if TYPE_CHECKING:
    import torch

MtpLayout = Literal["fused", "per_expert"]

DOCUMENTS = files("demo") / "qwen_small"
SHARD = "model-{:05d}-of-00005.safetensors"
LAYERS = "model.language_model.layers."

# (name, mean, standard deviation); None is 1/sqrt(fan in). The first match decides.
SPREADS: tuple[tuple[str, float, float | None], ...] = (
    (r".*\.(A_log|dt_bias)", 0.0, 0.5),
    (r"model\.visual\..*norm\d?\.weight|.*\.linear_attn\.norm\.weight", 1.0, 0.05),
    (r".*norm\w*\.weight", 0.0, 0.05),  # RMSNorm multiplies by 1 + weight
    (r".*\.bias", 0.0, 0.02),
    (r".*\.conv1d\.weight", 0.0, 0.5),
    (r".*\.embed_tokens\.weight", 0.0, 1.0),
    (r".*\.mlp\.gate\.weight", 0.0, 0.125),
    (r".*", 0.0, None),
)

# (name, shard); the first match decides. Every fused pair is split, as are layers 0 to 2 and the draft head.
SHARD_OF: tuple[tuple[str, int], ...] = (
    (r"mtp\..*(gate_up_proj|experts\.\d+\.(gate|up)_proj\.weight)", 4),
    (r"mtp\..*|lm_head\.weight|model\.language_model\.norm\.weight", 5),
    (r".*layers\.0\.mlp\.experts\.down_proj", 2),
    (r".*layers\.1\.mlp\.experts\.gate_up_proj", 1),
    (r".*layers\.2\.mlp\.experts\.gate_up_proj", 2),
    (r".*layers\.3\.mlp\.experts\.down_proj", 5),
    (r".*layers\.1\..*", 2),
    (r".*layers\.2\..*", 3),
    (r".*layers\.3\..*", 4),
    (r".*", 1),
)

F32_STATE = r".*\.linear_attn\.(A_log|norm\.weight)"


def build_base(out: Path, *, mtp_layout: MtpLayout = "fused", f32_state: bool = False, seed: int = 0) -> Path:
    """Write the checkpoint to `out`, a folder that must not exist yet; returns `out`.

    `mtp_layout` "fused" gives 19 draft tensors as in Qwen3.6, "per_expert" 17 + 3E as in Qwen3.5. `f32_state` stores
    `A_log` and `linear_attn.norm.weight` in F32 as in Qwen3.5, with values that BF16 cannot hold; else all is BF16.
    """
    out.mkdir(parents=True)
    state = _state(seed, f32_state)
    if mtp_layout == "per_expert":
        state = _split_experts(state, "mtp.layers.0.mlp.experts.")
    save_sharded(out, state, {name: SHARD.format(_shard_number(name)) for name in state})
    for name in ("config.json", "generation_config.json"):
        (out / name).write_bytes((DOCUMENTS / name).read_bytes())
    write_side_files(out)
    return out


def logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] in F32 that transformers computes with the checkpoint, dense or packed."""
    import torch
    from transformers import Qwen3_5MoeForConditionalGeneration

    model = Qwen3_5MoeForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        scores: torch.Tensor = model(input_ids=torch.tensor([list(token_ids)])).logits
    return scores[0].float()


def _state(seed: int, f32_state: bool) -> State:
    import torch

    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in _shapes().items():
        drawn = _draw(name, shape, generator)
        keeps_f32 = f32_state and re.fullmatch(F32_STATE, name)
        state[name] = drawn if keeps_f32 else drawn.to(torch.bfloat16)
    embedding = state["model.language_model.embed_tokens.weight"]
    successor = torch.randperm(len(embedding), generator=generator)
    state["lm_head.weight"][successor] = embedding * 0.0625
    return state


def _shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of what transformers builds from the config, and of the draft head that it does not build."""
    import torch
    from transformers import AutoConfig, Qwen3_5MoeForConditionalGeneration

    document = json.loads((DOCUMENTS / "config.json").read_text())
    config = AutoConfig.for_model(**document)
    with torch.device("meta"):
        model = Qwen3_5MoeForConditionalGeneration(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return shapes | _draft_shapes(shapes, config.text_config)


def _draft_shapes(shapes: dict[str, tuple[int, ...]], text_config: Any) -> dict[str, tuple[int, ...]]:
    """The draft head: one layer like the last full-attention layer, a projection of 2H to H, and three norms."""
    layer_types: list[str] = text_config.layer_types
    hidden: int = text_config.hidden_size
    like = f"{LAYERS}{layer_types.index('full_attention')}."
    draft = {
        "mtp.layers.0." + name.removeprefix(like): shape for name, shape in shapes.items() if name.startswith(like)
    }
    norms = dict.fromkeys(
        ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"), (hidden,)
    )
    return {"mtp.fc.weight": (hidden, 2 * hidden), **draft, **norms}


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    mean, spread = next((mean, spread) for pattern, mean, spread in SPREADS if re.fullmatch(pattern, name))
    if spread is None:
        fan_in = shape[-1] if len(shape) <= 3 else prod(shape[1:])
        spread = fan_in**-0.5
    return mean + spread * torch.randn(shape, generator=generator)


def _split_experts(state: State, prefix: str) -> State:
    """`gate_up_proj` [E,2I,H] and `down_proj` [E,H,I] under `prefix` as 3E matrices named per expert."""
    split = dict(state)
    gate_up, down = split.pop(prefix + "gate_up_proj"), split.pop(prefix + "down_proj")
    for expert, (pair, matrix) in enumerate(zip(gate_up, down, strict=True)):
        gate, up = pair.chunk(2)
        for projection, weight in (("gate", gate), ("up", up), ("down", matrix)):
            split[f"{prefix}{expert}.{projection}_proj.weight"] = weight.contiguous()
    return split


def _shard_number(name: str) -> int:
    return next(number for pattern, number in SHARD_OF if re.fullmatch(pattern, name))


def compare(base: Path, other: Path) -> None:
    """Print how far the two models' predictions are apart; SystemExit unless finite and with equal next tokens."""
    tokens = range(20, 84)
    expected, found = logits(base, tokens).log_softmax(-1), logits(other, tokens).log_softmax(-1)
    equal = int((expected.argmax(-1) == found.argmax(-1)).sum())
    drift = (expected - found).gather(-1, expected.topk(5).indices).abs().mean()
    print(f"logits finite: {bool(found.isfinite().all())}")
    print(f"next token equal at {equal} of {len(tokens)} positions")
    print(f"top-5 log-probabilities differ by {drift:.3f} in the mean")
    if not found.isfinite().all() or equal < len(tokens):
        raise SystemExit(1)


def main(arguments: list[str]) -> None:
    """Run `build DIR` (with F32 state, as Qwen3.5 has it) or `compare BASE OTHER`."""
    match arguments:
        case ["build", folder]:
            print(build_base(Path(folder), f32_state=True))
        case ["compare", base, other]:
            compare(Path(base), Path(other))
        case _:
            raise SystemExit("usage: python -m demo.qwen_moe build DIR | compare BASE OTHER")


if __name__ == "__main__":
    main(sys.argv[1:])
