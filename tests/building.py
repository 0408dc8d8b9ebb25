"""Checkpoints made by hand: every byte of header, index and config as a test wants it, right or wrong.

Written without the code under test. An entry is (dtype, shape, data); data None stands for zeros.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

Entry = tuple[str, tuple[int, ...], bytes | None]
Entries = dict[str, Entry]

INDEX = "model.safetensors.index.json"
WIDTHS = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_LINEAR = (
    ("self_attn.q_proj", (128, 128)),
    ("self_attn.k_proj", (64, 128)),
    ("self_attn.v_proj", (64, 128)),
    ("self_attn.o_proj", (128, 128)),
    ("mlp.gate_proj", (256, 128)),
    ("mlp.up_proj", (256, 128)),
    ("mlp.down_proj", (128, 256)),
)


def llama_entries(layers: int = 2) -> Entries:
    """The 21 dense tensors of `LLAMA`, as transformers names them."""
    entries: Entries = {
        "lm_head.weight": ("BF16", (64, 128), None),
        "model.embed_tokens.weight": ("BF16", (64, 128), None),
        "model.norm.weight": ("BF16", (128,), None),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            entries[f"{prefix}{norm}.weight"] = ("BF16", (128,), None)
        for name, shape in LLAMA_LINEAR:
            entries[f"{prefix}{name}.weight"] = ("BF16", shape, None)
    return entries


def scheme(bits: int = 4, group_size: int | None = 32, *, symmetric: bool = True) -> dict[str, Any]:
    """A config group that packs to `bits` in groups of `group_size`, None for one scale a row."""
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    weights |= {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    return {"targets": ["Linear"], "format": "pack-quantized", "weights": weights}


def quantization(*ignore: str, **groups: dict[str, Any]) -> dict[str, Any]:
    """A `quantization_config`, by default with one group for every Linear."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups or {"group_0": scheme()},
        "ignore": list(ignore),
    }


def packed(module: str, rows: int, columns: int, bits: int = 4, group_size: int | None = 32, **more: Any) -> Entries:
    """The parts of a packed module of zeros; `symmetric=False` adds a zero point."""
    groups = columns // group_size if group_size else 1
    entries: Entries = {
        f"{module}.weight_packed": ("I32", (rows, -(-columns * bits // 32)), None),
        f"{module}.weight_scale": ("BF16", (rows, groups), None),
        f"{module}.weight_shape": ("I64", (2,), int64s(rows, columns)),
    }
    if not more.get("symmetric", True):
        entries[f"{module}.weight_zero_point"] = ("I32", (-(-rows * bits // 32), groups), None)
    return entries


def pack(entries: Entries, select: Callable[[str], bool], bits: int = 4, group_size: int | None = 32) -> Entries:
    """`entries` with each selected module packed, fused experts [E, parts * I, H] taken apart first."""
    result: Entries = {}
    for name, entry in entries.items():
        for module, shape in _modules(name, entry[1]):
            if select(module):
                result |= packed(module, shape[0], shape[1], bits, group_size)
            else:
                result[name] = entry
    return result


def _modules(name: str, shape: tuple[int, ...]) -> Iterable[tuple[str, tuple[int, ...]]]:
    owner, _, leaf = name.rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(leaf, ())
    if len(shape) != 3 or not parts:
        return [(name.removesuffix(".weight"), shape)]
    rows = shape[1] // len(parts)
    return [(f"{owner}.{expert}.{part}", (rows, shape[2])) for expert in range(shape[0]) for part in parts]


def int64s(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def dense_llama(folder: Path, **changes: Any) -> Path:
    """A sound dense checkpoint in two shards, without a quantization_config."""
    return write_checkpoint(folder, llama_entries(), LLAMA | changes)


def packed_llama(folder: Path, bits: int = 4, group_size: int | None = 32, **changes: Any) -> Path:
    """A sound checkpoint with all Linear modules of the layers packed, the head ignored."""
    entries = pack(llama_entries(), is_layer_linear, bits, group_size)
    groups = {"group_0": scheme(bits, group_size)}
    config = LLAMA | {"quantization_config": quantization("lm_head", **groups)} | changes
    return write_checkpoint(folder, entries, config)


def is_layer_linear(module: str) -> bool:
    return module.endswith("_proj")


def write_checkpoint(folder: Path, entries: Entries, config: Mapping[str, Any] | None = None, shards: int = 2) -> Path:
    """Write `entries` to `shards` files in turn, with an index, `config` and the files that a release has beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    home = {name: files[position * shards // len(entries)] for position, name in enumerate(entries)}
    for file in files:
        write_shard(folder / file, {name: entry for name, entry in entries.items() if home[name] == file})
    write_index(folder, home, sum(size(entry) for entry in entries.values()))
    if config is not None:
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", {"eos_token_id": config.get("eos_token_id", 2)})
    write_json(folder / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


def write_shard(path: Path, entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file with `entries` back to back, as the format's own documentation describes it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} if metadata is None else dict(metadata)}
    position = 0
    for name, entry in entries.items():
        end = position + size(entry)
        header[name] = {"dtype": entry[0], "shape": list(entry[1]), "data_offsets": [position, end]}
        position = end
    write_raw(path, header, b"".join(data or bytes(size((d, s, data))) for d, s, data in entries.values()))


def write_raw(path: Path, header: Mapping[str, Any] | str, data: bytes) -> None:
    """A file with this header, whether it is true or not."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_index(folder: Path, weight_map: Mapping[str, str], total_size: float) -> None:
    write_json(folder / INDEX, {"metadata": {"total_size": total_size}, "weight_map": dict(weight_map)})


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Apply `change` to the document in `path`."""
    document = json.loads(path.read_text())
    change(document)
    write_json(path, document)


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")


def size(entry: Entry) -> int:
    return WIDTHS[entry[0]] * prod(entry[1])


def entries_of(folder: Path) -> Entries:
    """What the shards of `folder` hold, without the data."""
    entries: Entries = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        entries |= {name: (one["dtype"], tuple(one["shape"]), None) for name, one in header.items()}
    return entries


def without(entries: Entries, *names: str) -> Entries:
    return {name: entry for name, entry in entries.items() if name not in names}


def changed(document: Mapping[str, Any], *path: str, value: Any) -> dict[str, Any]:
    """A copy of `document` with `value` at `path`."""
    result = deepcopy(dict(document))
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


def found(report: Any, severity: str | None = None) -> list[str]:
    """The ids of the rules that found something, each once, in the order of the report."""
    return list(dict.fromkeys(f.rule for f in report.findings if severity in (None, f.severity)))
