"""The checkpoints that are worked on, made on this machine. `python -m benchmarks.inputs KIND OUT ...` makes one.

In a process of its own each, so that nothing of it is left when the measuring begins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.measuring import python, run
from benchmarks.stored import places
from benchmarks.weights import fill_places, write_random
from demo.qwen_files import write_side_files
from demo.replica import build_replica
from demo.shards import write_index
from demo.sparse import tensor_bytes, write_sparse

EXPERTS = "model.language_model.layers.{layer}.mlp.experts."
HEAD = "lm_head.weight"
MTP = "mtp."
SHARD = "model-{:05d}-of-{:05d}.safetensors"


@dataclass(frozen=True)
class Experts:
    """Fused expert layers of a Qwen3.6 MoE; the defaults are one layer of Qwen3.6-35B-A3B, 1.61 GB in BF16."""

    layers: int = 1
    experts: int = 256
    intermediate: int = 512
    hidden: int = 2048
    shards: int = 1

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes: gate_up_proj [E, 2I, H] and down_proj [E, H, I] of each layer."""
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(self.layers):
            owner = EXPERTS.format(layer=layer)
            found[f"{owner}gate_up_proj"] = (self.experts, 2 * self.intermediate, self.hidden)
            found[f"{owner}down_proj"] = (self.experts, self.hidden, self.intermediate)
        return found

    @property
    def nbytes(self) -> int:
        """Of the weights, in BF16."""
        return self.layers * self.experts * 3 * self.intermediate * self.hidden * 2

    @property
    def packed_nbytes(self) -> int:
        """As INT4 with a BF16 scale for every 32."""
        return self.nbytes // 4 + self.nbytes // 32

    @property
    def modules(self) -> int:
        """Matrices that are packed."""
        return self.layers * self.experts * 3


@dataclass(frozen=True)
class Head:
    """An `lm_head`; the default is that of Qwen3.6-35B-A3B, 1.02 GB in BF16."""

    vocabulary: int = 248_320
    hidden: int = 2048

    @property
    def nbytes(self) -> int:
        return self.vocabulary * self.hidden * 2


def make(kind: str, out: Path, **options: object) -> Path:
    """Make an input in a process of its own; returns `out`."""
    run(python("benchmarks.inputs", kind, out, json.dumps(options)))
    return out


def make_experts(out: Path, size: Experts, seed: int = 0) -> Path:
    return make("experts", out, size=asdict(size), seed=seed)


def write_experts(out: Path, size: Mapping[str, int], seed: int) -> None:
    """Expert layers alone, the tensors spread over the shards in their order."""
    shape = Experts(**size)
    out.mkdir(parents=True)
    names = list(shape.tensors())
    per_shard = -(-len(names) // shape.shards)
    shard_of = {name: _shard_name(i // per_shard, shape.shards) for i, name in enumerate(names)}
    for number, shard in enumerate(sorted(set(shard_of.values()))):
        held = {name: dims for name, dims in shape.tensors().items() if shard_of[name] == shard}
        write_random(out / shard, held, seed + number)
    if shape.shards > 1:
        write_index(out, shard_of, shape.nbytes)
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.intermediate, "hidden_size": shape.hidden}
    _write_config(out, _released_config(), {**sizes, "num_hidden_layers": shape.layers})


def write_head(out: Path, vocabulary: int, hidden: int, seed: int) -> None:
    """A head alone, with the config of the release."""
    out.mkdir(parents=True)
    write_random(out / _shard_name(0, 1), {HEAD: (vocabulary, hidden)}, seed)
    _write_config(out, _released_config(), {"vocab_size": vocabulary, "hidden_size": hidden})


def write_base(out: Path, small: bool, seed: int) -> None:
    """Qwen3.6-35B-A3B at full size as holes (a tiny one where `small`), its MTP head random and on disk."""
    if small:
        _write_small_base(out)
    else:
        build_replica(out)
    fill_places([place for name, place in places(out).items() if name.startswith(MTP)], seed)


def write_export(out: Path, base: str, shards: int, complete: bool, seed: int, head_on_disk: bool = False) -> None:
    """What `base` becomes by the preset body-int4-g128, as holes in `shards` shards.

    A `complete` one has the MTP head and an INT8 lm_head, else it lacks the first and its lm_head is dense. With
    `head_on_disk` the shard that holds the dense head is random data on disk.
    """
    from checkpoint import Draft, open_checkpoint
    from surgery import int8_head, load_preset, quantize

    preset = load_preset("body-int4-g128")
    draft = quantize(Draft.of(open_checkpoint(base)), preset.groups, ignore=preset.ignore)
    draft = int8_head(draft) if complete else draft.without([n for n in draft.tensors if n.startswith(MTP)])
    tensors = {name: (source.dtype, tuple(source.shape)) for name, source in draft.tensors.items()}
    out.mkdir(parents=True)
    sizes = {name: tensor_bytes(*entry) for name, entry in tensors.items()}
    shard_of = _spread(sizes, shards)
    for shard in sorted(set(shard_of.values())):
        write_sparse(out / shard, {name: tensors[name] for name in tensors if shard_of[name] == shard})
    write_index(out, shard_of, sum(sizes.values()))
    (out / "config.json").write_text(draft.config.text)
    for name, path in draft.side_files.items():
        (out / name).write_bytes(path.read_bytes())
    if head_on_disk:
        fill_places([place for name, place in places(out).items() if shard_of[name] == shard_of[HEAD]], seed)


def _spread(sizes: Mapping[str, int], shards: int) -> dict[str, str]:
    """Each tensor to one of `shards` shards in turn, each until its share of the bytes is reached."""
    share = sum(sizes.values()) / shards
    shard_of, filled = {}, 0
    for name, nbytes in sizes.items():
        shard_of[name] = _shard_name(min(int(filled / share), shards - 1), shards)
        filled += nbytes
    return shard_of


def _write_small_base(out: Path) -> None:
    """The layout of the release at a thousandth of its size."""
    from checkpoint.families import load_family

    config = json.loads((files("demo") / "qwen_small" / "config.json").read_text())
    expected = load_family("qwen3_5_moe").spec(config).tensors()
    tensors = {name: ("BF16", tensor.shape) for name, tensor in expected.items()}
    out.mkdir(parents=True)
    shard_of = _spread({name: tensor_bytes(*entry) for name, entry in tensors.items()}, 3)
    for shard in sorted(set(shard_of.values())):
        write_sparse(out / shard, {name: tensors[name] for name in tensors if shard_of[name] == shard})
    write_index(out, shard_of, sum(tensor_bytes(*entry) for entry in tensors.values()))
    _write_config(out, config, {})
    (out / "generation_config.json").write_bytes((files("demo") / "qwen_small/generation_config.json").read_bytes())
    write_side_files(out)


def _released_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((files("demo") / "qwen36_35b_a3b" / "config.json").read_text())
    return config


def _write_config(out: Path, config: dict[str, Any], text: Mapping[str, int]) -> None:
    section = config["text_config"] | dict(text)
    if "layer_types" in section:
        section["layer_types"] = section["layer_types"][: section["num_hidden_layers"]]
    (out / "config.json").write_text(json.dumps(config | {"text_config": section}, indent=2) + "\n")


def _shard_name(number: int, count: int) -> str:
    return SHARD.format(number + 1, count) if count > 1 else "model.safetensors"


KINDS: Mapping[str, Callable[..., None]] = {
    "experts": write_experts,
    "head": write_head,
    "base": write_base,
    "export": write_export,
}


def main(arguments: Sequence[str]) -> None:
    """Make the input of a kind in a folder, with its options as JSON."""
    kind, out, options = arguments
    KINDS[kind](Path(out), **json.loads(options))


if __name__ == "__main__":
    main(sys.argv[1:])
