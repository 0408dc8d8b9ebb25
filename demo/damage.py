"""What exporters do to a checkpoint, done on purpose: each function damages a folder in place, in one way.

The damages are those seen in exports of llm-compressor 0.14 and transformers 5: the draft head is not loaded and so not
saved, the calibration context writes norms back with another rounding, the model's dtype replaces F32 state, and
`save_pretrained` writes its own idea of the side files and of the ignore list. Work on a copy; files that it shares
with its original by hard links are replaced, not written through. Usable as `python -m demo.damage DIR`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.shards import read_shards, replace_text, save_shard, write_index

if TYPE_CHECKING:
    import torch

DRAFT = "mtp."
OFFSET_NORM = r"(?!mtp\.).*\.(input_layernorm|post_attention_layernorm|q_norm|k_norm|language_model\.norm)\.weight"
F32_STATE = r".*\.linear_attn\.(A_log|norm\.weight)"
EMBEDDING = r".*(embed_tokens|pos_embed)\.weight"
LOST_FILES = (
    "vocab.json",
    "merges.txt",
    "README.md",
    "LICENSE",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def damage_export(folder: Path) -> None:
    """Do to `folder` all that an export through transformers and llm-compressor does."""
    drop_draft_head(folder)
    alter_norms(folder)
    downcast_state(folder)
    reserialise_side_files(folder)
    expand_ignore(folder)


def drop_draft_head(folder: Path) -> None:
    """Remove `mtp.*` from shards and index; the config still promises it (transformers ignores it on load)."""
    for path, tensors in read_shards(folder):
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(DRAFT)}
        if not kept:
            path.unlink()
        elif len(kept) < len(tensors):
            save_shard(path, kept)
    _reindex(folder)


def alter_norms(folder: Path) -> None:
    """Replace each offset RMSNorm weight w of the body by bf16(bf16(1 + w) - 1), as norm calibration does."""
    _rewrite(folder, OFFSET_NORM, lambda weight: (1 + weight) - 1)


def downcast_state(folder: Path) -> None:
    """Store F32 `A_log` and `linear_attn.norm.weight` in BF16, the dtype the model was loaded in."""
    import torch

    _rewrite(folder, F32_STATE, lambda state: state.to(torch.bfloat16))


def reserialise_side_files(folder: Path) -> None:
    """Write tokenizer and generation config as transformers 5 does, and lose the files that it does not write."""
    tokenizer = _read_json(folder / "tokenizer_config.json")
    for key in ("added_tokens_decoder", "add_bos_token", "chat_template"):
        tokenizer.pop(key, None)
    tokenizer["extra_special_tokens"] = tokenizer.pop("additional_special_tokens", [])
    tokenizer |= {"backend": "tokenizers", "is_local": True, "local_files_only": False}
    tokenizer["tokenizer_class"] = "TokenizersBackend"
    _write_sorted(folder / "tokenizer_config.json", tokenizer)
    generation = _read_json(folder / "generation_config.json")
    _write_sorted(folder / "generation_config.json", generation | {"transformers_version": "5.17.0"})
    for name in LOST_FILES:
        (folder / name).unlink(missing_ok=True)


def expand_ignore(folder: Path) -> None:
    """Sort config.json, and spell the ignore list out: every dense Linear by name, without the draft head."""
    config = _read_json(folder / "config.json")
    if "quantization_config" in config:
        body = (module for module in dense_linears(folder) if not module.startswith(DRAFT))
        config["quantization_config"]["ignore"] = list(body)
    _write_sorted(folder / "config.json", config)


def dense_linears(folder: Path) -> list[str]:
    """Names of the modules of `folder` that hold a 2-D `weight` and are no embedding, sorted."""
    from safetensors import safe_open

    modules = []
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                is_matrix = name.endswith(".weight") and len(shard.get_slice(name).get_shape()) == 2
                if is_matrix and not re.fullmatch(EMBEDDING, name):
                    modules.append(name.removesuffix(".weight"))
    return sorted(modules)


def _rewrite(folder: Path, pattern: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Apply `change` to the tensors whose names match `pattern`; shards without one are left alone."""
    for path, tensors in read_shards(folder):
        changed = {name: change(tensor) for name, tensor in tensors.items() if re.fullmatch(pattern, name)}
        if changed:
            save_shard(path, tensors | changed)
    _reindex(folder)


def _reindex(folder: Path) -> None:
    shard_of: dict[str, str] = {}
    total = 0
    for path, tensors in read_shards(folder):
        shard_of |= dict.fromkeys(tensors, path.name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    write_index(folder, shard_of, total)


def _read_json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def _write_sorted(path: Path, document: dict[str, Any]) -> None:
    replace_text(path, json.dumps(document, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    damage_export(Path(sys.argv[1]))
