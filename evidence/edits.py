"""Ways to break a checkpoint: an `Edit` changes tensors and config in memory, a `Damage` the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.shards import INDEX, State, read_shards, save_shard
from evidence.reference import dense_weight

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]
Edit = Callable[[State, Config], object]
Damage = Callable[[Path], object]
Change = Callable[["torch.Tensor"], "torch.Tensor"]


def drop(*names: str) -> Edit:
    """Without the tensors of these names, or that begin with one of them and a dot. KeyError if there are none."""

    def edit(state: State, config: Config) -> None:
        inside = tuple(f"{name}." for name in names)
        gone = [name for name in state if name in names or name.startswith(inside)]
        if not gone:
            raise KeyError(names)
        for name in gone:
            del state[name]

    return edit


def changed(change: Change, *names: str) -> Edit:
    """Each of the tensors replaced by what `change` makes of it."""
    return lambda state, config: state.update({name: change(state[name]) for name in names})


def filled(value: float, *names: str, first: int | None = None) -> Edit:
    """The first elements of each tensor, by default all, set to `value`."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone().flatten()
        copy[:first] = value
        return copy.reshape(tensor.shape)

    return changed(change, *names)


def dense(*modules: str) -> Edit:
    """Packed modules stored dense instead."""

    def edit(state: State, config: Config) -> None:
        for module in modules:
            weight = dense_weight(state, f"{module}.weight")
            drop(*(f"{module}.weight_{part}" for part in ("packed", "scale", "shape")))(state, config)
            state[f"{module}.weight"] = weight

    return edit


def copied(source: str, target: str) -> Edit:
    """The parts of one module in another's place."""

    def edit(state: State, config: Config) -> None:
        for part in ("weight_packed", "weight_scale"):
            state[f"{target}.{part}"] = state[f"{source}.{part}"].clone()

    return edit


def exchanged(*pairs: tuple[str, str]) -> Edit:
    """The parts of two modules exchanged, for each pair."""

    def edit(state: State, config: Config) -> None:
        for one, other in pairs:
            for part in ("weight_packed", "weight_scale"):
                left, right = f"{one}.{part}", f"{other}.{part}"
                state[left], state[right] = state[right], state[left]

    return edit


def renamed(old: str, new: str) -> Edit:
    """Every tensor with `old` in its name under `new`."""

    def edit(state: State, config: Config) -> None:
        for name in [name for name in state if old in name]:
            state[name.replace(old, new)] = state.pop(name)

    return edit


def setting(*path: str, value: Any) -> Edit:
    """config.json with `value` at `path`."""

    def edit(state: State, config: Config) -> None:
        inner = config
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return edit


def quantization(*path: str, value: Any) -> Edit:
    """quantization_config with `value` at `path`."""
    return setting("quantization_config", *path, value=value)


def ignoring(*entries: str) -> Edit:
    """Further ignore entries."""
    return lambda state, config: config["quantization_config"]["ignore"].extend(entries)


def not_ignoring(*parts: str) -> Edit:
    """The ignore list without the entries in which one of `parts` occurs. KeyError if there are none."""

    def edit(state: State, config: Config) -> None:
        before = config["quantization_config"]["ignore"]
        after = [entry for entry in before if not any(part in entry for part in parts)]
        if len(after) == len(before):
            raise KeyError(parts)
        config["quantization_config"]["ignore"] = after

    return edit


def both(*edits: Edit) -> Edit:
    """Several edits that make one defect."""
    return lambda state, config: [edit(state, config) for edit in edits]


def reversed_words(tensor: torch.Tensor) -> torch.Tensor:
    """The 4-bit codes of each I32 word in the opposite order."""
    import torch

    codes = [(tensor.long() >> shift) & 15 for shift in range(0, 32, 4)]
    word = sum((code << shift for code, shift in zip(codes, range(28, -4, -4), strict=True)), torch.zeros(1).long())
    return torch.where(word >= 2**31, word - 2**32, word).int()


def one_group_on(tensor: torch.Tensor) -> torch.Tensor:
    """Scales moved on by one group in their row."""
    return tensor.roll(1, 1)


def rounded_norm(tensor: torch.Tensor) -> torch.Tensor:
    """An offset norm w as norm calibration writes it back: bf16(bf16(1 + w) - 1)."""
    return (1 + tensor) - 1


def index(change: Callable[[dict[str, Any]], object]) -> Damage:
    """The index changed."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text())
        change(document)
        _replaced(folder / INDEX, json.dumps(document).encode())

    return damage


def unindexed(prefix: str, file: str) -> Damage:
    """The tensors with this prefix moved to a file that the index does not name."""

    def damage(folder: Path) -> None:
        moved: State = {}
        for path, tensors in read_shards(folder):
            kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
            if len(kept) < len(tensors):
                moved |= {name: tensor for name, tensor in tensors.items() if name not in kept}
                save_shard(path, kept)
        save_shard(folder / file, moved)
        index(lambda document: [document["weight_map"].pop(name) for name in moved])(folder)

    return damage


def stale(name: str, change: Change) -> Damage:
    """An older value of the tensor left in the last shard; the index still names the shard of the right one."""

    def damage(folder: Path) -> None:
        shards = dict(read_shards(folder))
        value = next(tensors[name] for tensors in shards.values() if name in tensors)
        last = max(shards)
        save_shard(last, {**shards[last], name: change(value)})

    return damage


def truncated(keep: Callable[[int], int]) -> Damage:
    """The last shard cut to as many bytes as `keep` gives of its size."""

    def damage(folder: Path) -> None:
        last = max(folder.glob("*.safetensors"))
        content = last.read_bytes()
        _replaced(last, content[: keep(len(content))])

    return damage


def replaced_file(content: bytes) -> Damage:
    """The last shard with this content."""
    return lambda folder: _replaced(max(folder.glob("*.safetensors")), content)


def lost(number: int) -> Damage:
    """A shard deleted that the index still names."""
    return lambda folder: sorted(folder.glob("*.safetensors"))[number].unlink()


def _replaced(path: Path, content: bytes) -> None:
    """Write a new file, since the old one may share its storage with the sound checkpoint."""
    path.unlink()
    path.write_bytes(content)
