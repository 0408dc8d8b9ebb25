"""A checkpoint in memory before it is written: a defect changes it here, or as files once it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from building import Entries, write_checkpoint, write_json

Edit = Callable[["Build"], object]
Damage = Callable[[Path], object]


@dataclass
class Build:
    """Tensors, config.json and side files (text, or a document); `base` is the folder that it was made of."""

    entries: Entries
    config: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)
    base: Callable[[], Path] | None = None
    shards: int = 2

    def copy(self) -> Build:
        return replace(self, entries=dict(self.entries), config=deepcopy(self.config), files=deepcopy(self.files))

    def write(self, folder: Path) -> Path:
        write_checkpoint(folder, self.entries, self.config, self.shards)
        for name, content in self.files.items():
            if isinstance(content, str):
                (folder / name).write_text(content)
            else:
                write_json(folder / name, content)
        return folder

    @property
    def quantization(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config["quantization_config"]
        return found

    def modules(self, *ends: str) -> list[str]:
        """The packed modules whose names end in one of `ends`."""
        owners = (name.removesuffix(".weight_packed") for name in self.entries if name.endswith(".weight_packed"))
        return [owner for owner in owners if owner.endswith(ends)]


@dataclass(frozen=True, eq=False)
class Defect:
    """One way to break the checkpoint `on`, and the `rule` that must find it, and `also` those that it breaks, too.

    `edit` changes the build before it is written, `damage` the folder. `options` are those of `verify`; `based`
    is against the base. `report` is the public report of it, `says` what the finding must explain.
    """

    name: str
    on: str
    rule: str
    edit: Edit | None = None
    damage: Damage | None = None
    also: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    based: bool = False
    report: str = ""
    says: str = ""

    @property
    def id(self) -> str:
        return f"{self.rule} {self.on}: {self.name}"


def defects(rule: str, on: str, table: Mapping[str, Edit], **details: Any) -> list[Defect]:
    """A defect for each edit, all of them found by the same rule."""
    return [Defect(name, on, rule, edit=edit, **details) for name, edit in table.items()]


def damages(rule: str, on: str, table: Mapping[str, Damage], **details: Any) -> list[Defect]:
    """A defect for each damage to the folder, all of them found by the same rule."""
    return [Defect(name, on, rule, damage=damage, **details) for name, damage in table.items()]


def drop(*names: str) -> Edit:
    """Without the tensors of these names, or that begin with one of them and a dot."""
    inside = tuple(f"{name}." for name in names)

    def edit(build: Build) -> None:
        gone = [name for name in build.entries if name in names or name.startswith(inside)]
        assert gone, names
        for name in gone:
            del build.entries[name]

    return edit


def add(name: str, dtype: str = "BF16", shape: tuple[int, ...] = (128,), data: bytes | None = None) -> Edit:
    """A further tensor, of zeros by default."""
    return lambda build: build.entries.update({name: (dtype, shape, data)})


def recast(name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Edit:
    """The tensor with another dtype or shape, of zeros."""

    def edit(build: Build) -> None:
        before = build.entries[name]
        build.entries[name] = (dtype or before[0], before[1] if shape is None else shape, None)

    return edit


def rename(change: Callable[[str], str]) -> Edit:
    """Every tensor under the name that `change` gives it."""

    def edit(build: Build) -> None:
        build.entries = {change(name): entry for name, entry in build.entries.items()}

    return edit


def setting(*path: str, value: Any) -> Edit:
    """config.json with `value` at `path`."""

    def edit(build: Build) -> None:
        inner = build.config
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return edit


def unset(*path: str) -> Edit:
    """config.json without the key at `path`."""

    def edit(build: Build) -> None:
        inner = build.config
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return edit


def quantized(*path: str, value: Any) -> Edit:
    """quantization_config with `value` at `path`."""
    return setting("quantization_config", *path, value=value)


def arguments(group: str = "group_0", **values: Any) -> Edit:
    """A group's weights with these arguments."""
    return lambda build: build.quantization["config_groups"][group]["weights"].update(values)


def ignoring(*entries: str) -> Edit:
    """Further ignore entries."""
    return lambda build: build.quantization["ignore"].extend(entries)


def not_ignoring(*parts: str) -> Edit:
    """The ignore list without entries in which one of `parts` occurs."""

    def edit(build: Build) -> None:
        before = build.quantization["ignore"]
        after = [entry for entry in before if not any(part in entry for part in parts)]
        assert len(after) < len(before), parts
        build.quantization["ignore"] = after

    return edit


def instead(old: str, *new: str) -> Edit:
    """The ignore entry `old` replaced."""

    def edit(build: Build) -> None:
        ignore = build.quantization["ignore"]
        place = ignore.index(old)
        ignore[place : place + 1] = new

    return edit


def both(*edits: Edit) -> Edit:
    """Several edits that make one defect."""
    return lambda build: [edit(build) for edit in edits]


def flipped(name: str, change: Callable[[bytearray], object]) -> Edit:
    """The tensor with its bytes changed in place."""

    def edit(build: Build) -> None:
        dtype, shape, data = build.entries[name]
        assert data is not None, name
        changed = bytearray(data)
        change(changed)
        build.entries[name] = (dtype, shape, bytes(changed))

    return edit


def filled(name: str, item: bytes, count: int | None = None) -> Edit:
    """The tensor with its first `count` elements, by default all, replaced by `item`."""

    def change(data: bytearray) -> None:
        number = len(data) // len(item) if count is None else count
        data[: number * len(item)] = item * number

    return flipped(name, change)


def swapped(one: str, other: str, *parts: str) -> Edit:
    """The contents of two modules exchanged, part by part."""

    def edit(build: Build) -> None:
        for part in parts or ("weight_packed", "weight_scale"):
            left, right = f"{one}.{part}", f"{other}.{part}"
            build.entries[left], build.entries[right] = build.entries[right], build.entries[left]

    return edit


def side_file(name: str, content: Any) -> Edit:
    """A side file with other content."""
    return lambda build: build.files.update({name: content})


def without_file(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage
