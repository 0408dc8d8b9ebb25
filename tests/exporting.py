"""Exports made by llm-compressor from checkpoints of random weights, and ways to change what is in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from building import LLAMA, LLAMA_LINEAR, scheme, write_json
from compressed_tensors.compressors import unpack_from_int32
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]

LONE = "model.safetensors"
UP, GATE = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj"
DOWN = "model.layers.1.mlp.down_proj"
QWEN = "model.language_model.layers."

IGNORED = ["lm_head", "re:.*embed_tokens", "re:.*norm"]
BODY_ONLY = [*IGNORED, "re:.*mtp.*", "re:.*visual.*", "re:.*linear_attn.*", "re:.*self_attn.*"]
BODY_ONLY += ["re:.*mlp.gate$", "re:.*shared_expert.*"]


def random_llama(folder: Path) -> Path:
    """A dense Llama of random BF16 weights, in one file without index."""
    generator = torch.Generator().manual_seed(11)
    state = {"lm_head.weight": torch.randn(64, 128, generator=generator) * 0.1}
    state["model.embed_tokens.weight"] = torch.randn(64, 128, generator=generator)
    state["model.norm.weight"] = torch.ones(128)
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"model.layers.{layer}.{norm}.weight"] = torch.rand(128, generator=generator)
        for name, shape in LLAMA_LINEAR:
            state[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=generator) * 0.05
    save(folder, {name: tensor.to(torch.bfloat16) for name, tensor in state.items()})
    write_json(folder / "config.json", LLAMA)
    write_json(folder / "generation_config.json", {"eos_token_id": 2})
    return folder


def export(base: Path, out: Path, bits: int, size: int | None, *, symmetric: bool = True, ignore: list[str]) -> Path:
    """`base` as llm-compressor quantizes it on a CPU, every Linear in the same scheme."""
    from compressed_tensors.quantization import QuantizationScheme
    from llmcompressor import model_free_ptq

    group = scheme(bits, size, symmetric=symmetric)
    args = QuantizationScheme(targets=["Linear"], weights=group["weights"])
    model_free_ptq(str(base), str(out), scheme=args, ignore=ignore, device="cpu", max_workers=1)
    return out


def save(folder: Path, state: State) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / LONE, metadata={"format": "pt"})


def changed(source: Path, folder: Path, change: Callable[[State], object]) -> Path:
    """A copy of `source`, its weights changed in place by `change`."""
    shutil.copytree(source, folder)
    state = load_file(folder / LONE)
    change(state)
    save(folder, state)
    return folder


def experts_changed(source: Path, folder: Path, holder: str, change: Callable[[State], object]) -> Path:
    """A copy of a sharded `source`, the shard that holds the tensor `holder` changed in place by `change`."""
    shutil.copytree(source, folder)
    shard = next(path for path in sorted(folder.glob("*.safetensors")) if holder in load_file(path))
    state = load_file(shard)
    change(state)
    save_file(state, shard, metadata={"format": "pt"})
    return folder


def unpacked(state: State, module: str) -> torch.Tensor:
    rows, columns = state[f"{module}.weight_shape"].tolist()
    codes: torch.Tensor = unpack_from_int32(state[f"{module}.weight_packed"], 4, torch.Size([rows, columns]))
    return codes


def swap(state: State, one: str, other: str) -> None:
    for part in ("weight_packed", "weight_scale"):
        left, right = f"{one}.{part}", f"{other}.{part}"
        state[left], state[right] = state[right], state[left]
