"""Files, headers, index and names: each fault is reported by the one rule that names it, a sound folder by none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from building import (
    INDEX,
    LLAMA,
    dense_llama,
    edit_json,
    entries_of,
    found,
    llama_entries,
    packed_llama,
    write_checkpoint,
    write_raw,
    write_shard,
)

from verify import verify

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NORM = "model.norm.weight"
Damage = Callable[[Path], object]


def test_sound_checkpoints_give_no_finding(tmp_path: Path) -> None:
    assert verify(dense_llama(tmp_path / "dense")).findings == ()
    assert verify(packed_llama(tmp_path / "packed")).findings == ()


def test_a_lone_file_without_an_index_is_sound(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, llama_entries(), LLAMA, shards=1)
    (tmp_path / INDEX).unlink()
    (tmp_path / "model-00001-of-00001.safetensors").rename(tmp_path / "model.safetensors")
    assert verify(tmp_path).findings == ()


def break_header(folder: Path) -> None:
    (folder / SECOND).write_bytes((1 << 40).to_bytes(8, "little") + b"{}")


def empty_shard(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"")


def cut_header(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:40])


def cut_data(folder: Path) -> None:
    path = folder / SECOND
    path.write_bytes(path.read_bytes()[:-1])


def append_data(folder: Path) -> None:
    path = folder / SECOND
    path.write_bytes(path.read_bytes() + b"\0")


def overlap(folder: Path) -> None:
    path = folder / SECOND
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    last = list(header)[-1]
    header[last]["data_offsets"] = [offset - 2 for offset in header[last]["data_offsets"]]
    write_raw(path, header, raw[8 + length :])


def leave_pointer(folder: Path) -> None:
    (folder / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


def drop_index_entry(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].pop(NORM))


def misplace(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({NORM: SECOND}))


def promise(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({"model.layers.0.mlp.gate_proj.bias": FIRST}))


def store_twice(folder: Path) -> None:
    entries, here = entries_of(folder), held(folder, SECOND)
    write_shard(folder / SECOND, {name: entry for name, entry in entries.items() if name in here or name == NORM})
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=total(folder)))


def add_shard(folder: Path, name: str = "mtp.safetensors") -> None:
    write_shard(folder / name, {"mtp.norm.weight": ("BF16", (128,), None)})


def forget_metadata(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index.pop("metadata"))


def lose_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def garble_index(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def miscount(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))


def add_lone_file(folder: Path) -> None:
    write_shard(folder / "model.safetensors", {NORM: ("BF16", (128,), None)})


def forget_format(folder: Path) -> None:
    entries = {name: entry for name, entry in entries_of(folder).items() if name in held(folder, SECOND)}
    write_shard(folder / SECOND, entries, metadata={})


def rename_shard(folder: Path) -> None:
    third = "model-00003-of-00003.safetensors"
    (folder / SECOND).rename(folder / third)
    edit_json(folder / INDEX, lambda index: index.update(weight_map=renamed(index["weight_map"], third)))


def repeat_key(folder: Path) -> None:
    entry = '{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}'
    write_raw(folder / SECOND, f'{{"a":{entry},"a":{entry}}}', b"\0\0")


def leave_folder(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({NORM: "../elsewhere.safetensors"}))


def total(folder: Path) -> int:
    """Bytes of all tensors of all shards, those of equal name too."""
    sizes = []
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        sizes.append(len(raw) - 8 - int.from_bytes(raw[:8], "little"))
    return sum(sizes)


def held(folder: Path, file: str) -> set[str]:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    return {name for name, home in weight_map.items() if home == file}


def renamed(weight_map: dict[str, str], new: str) -> dict[str, str]:
    return {name: new if home == SECOND else home for name, home in weight_map.items()}


FAULTS: list[tuple[str, Damage, str]] = [
    ("F01", break_header, SECOND),
    ("F01", empty_shard, SECOND),
    ("F01", cut_header, SECOND),
    ("F02", cut_data, SECOND),
    ("F02", append_data, SECOND),
    ("F02", overlap, f"{SECOND}: model.layers.1.mlp.down_proj.weight"),
    ("F03", leave_pointer, SECOND),
    ("F04", lambda folder: (folder / SECOND).unlink(), SECOND),
    ("F05", add_shard, "mtp.safetensors"),
    ("F06", drop_index_entry, f"{FIRST}: {NORM}"),
    ("F07", misplace, f"{INDEX}: {NORM}"),
    ("F07", promise, f"{INDEX}: model.layers.0.mlp.gate_proj.bias"),
    ("F08", store_twice, f"{SECOND}: {NORM}"),
    ("F09", forget_metadata, INDEX),
    ("F09", lose_index, INDEX),
    ("F09", garble_index, INDEX),
    ("F10", miscount, INDEX),
    ("F11", add_lone_file, "model.safetensors"),
    ("F12", lambda folder: add_shard(folder, "consolidated.safetensors"), "consolidated.safetensors"),
    ("F12", lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"), "pytorch_model.bin"),
    ("F13", forget_format, SECOND),
    ("F14", rename_shard, "model-*"),
    ("F15", repeat_key, f"{SECOND}: a"),
    ("F15", leave_folder, f"{INDEX}: {NORM}"),
]


@pytest.mark.parametrize("rule, damage, place", FAULTS, ids=[f"{r}-{d.__name__}" for r, d, _ in FAULTS])
def test_each_fault_is_found_once_and_by_one_rule(tmp_path: Path, rule: str, damage: Damage, place: str) -> None:
    damage(dense_llama(tmp_path))
    report = verify(tmp_path, only=["F", "I", "T", "S"])
    assert [(finding.rule, finding.place) for finding in report.findings] == [(rule, place)]


def test_shards_that_all_lack_their_format_are_one_place(tmp_path: Path) -> None:
    dense_llama(tmp_path)
    for file in (FIRST, SECOND):
        write_shard(tmp_path / file, {n: e for n, e in entries_of(tmp_path).items() if n in held(tmp_path, file)}, {})
    (finding,) = verify(tmp_path).findings
    assert (finding.rule, finding.place, finding.count) == ("F13", "all shards", 2)


def test_a_moved_tensor_says_where_it_is(tmp_path: Path) -> None:
    misplace(dense_llama(tmp_path))
    (finding,) = verify(tmp_path).findings
    assert finding.found.endswith(f"it lies in {FIRST}")


def test_gap_in_shard_numbers(tmp_path: Path) -> None:
    dense_llama(tmp_path)
    new = "model-00003-of-00002.safetensors".replace("00002", "00004")
    (tmp_path / SECOND).rename(tmp_path / new)
    (tmp_path / FIRST).rename(tmp_path / "model-00001-of-00004.safetensors")
    names = {FIRST: "model-00001-of-00004.safetensors", SECOND: new}
    edit_json(tmp_path / INDEX, lambda i: i.update(weight_map={n: names[f] for n, f in i["weight_map"].items()}))
    (finding,) = verify(tmp_path).findings
    assert (finding.rule, finding.found) == ("F14", "no number {2,4}")


def test_a_shard_without_number_beside_numbered_ones_is_no_gap(tmp_path: Path) -> None:
    dense_llama(tmp_path)
    (tmp_path / SECOND).rename(tmp_path / "model_rest.safetensors")
    (tmp_path / FIRST).rename(tmp_path / "model-00001-of-00001.safetensors")
    names = {FIRST: "model-00001-of-00001.safetensors", SECOND: "model_rest.safetensors"}
    edit_json(tmp_path / INDEX, lambda i: i.update(weight_map={n: names[f] for n, f in i["weight_map"].items()}))
    assert verify(tmp_path).findings == ()


@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.language_model.norm.weight",
        "model.model.norm.weight",
        " model.norm.weight",
        "model.no\nrm.weight",
    ],
)
def test_names_that_no_engine_looks_up(tmp_path: Path, name: str) -> None:
    entries = llama_entries()
    entries[name] = entries.pop(NORM)
    write_checkpoint(tmp_path, entries, LLAMA)
    assert "F15" in found(verify(tmp_path))


def test_nested_prefix_that_the_base_has_is_no_fault(tmp_path: Path) -> None:
    entries = llama_entries() | {"model.model.norm.weight": ("BF16", (128,), None)}
    base = write_checkpoint(tmp_path / "base", entries, LLAMA)
    assert "F15" not in found(verify(write_checkpoint(tmp_path / "copy", entries, LLAMA), base=base))
    assert "F15" in found(verify(tmp_path / "copy"))


def test_the_total_may_be_a_float(tmp_path: Path) -> None:
    dense_llama(tmp_path)
    edit_json(tmp_path / INDEX, lambda index: index["metadata"].update(total_size=float(total(tmp_path))))
    assert verify(tmp_path).findings == ()
