"""Broken files, headers, indexes and names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from building import INDEX, edit_json, write_raw, write_shard

from defects.build import Damage, Defect, add, damages, defects, rename
from defects.sound import AWQ, BODY, DENSE, EXPERTS, FP8, FP8_DYNAMIC

FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 3996199712\n"
XET = "# xet version 0\nfilesize = 3996199712\n"
Header = dict[str, Any]


def raw(content: bytes) -> Damage:
    """The second shard with this content."""
    return lambda folder: (folder / SECOND).write_bytes(content)


def cut(keep: Callable[[int], int]) -> Damage:
    """The second shard up to as many bytes as `keep` gives of its size."""

    def damage(folder: Path) -> None:
        content = (folder / SECOND).read_bytes()
        (folder / SECOND).write_bytes(content[: keep(len(content))])

    return damage


def header(change: Callable[[Header], object], extra: bytes = b"") -> Damage:
    """The second shard with its header changed and `extra` bytes behind its data."""

    def damage(folder: Path) -> None:
        content = (folder / SECOND).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        document = json.loads(content[8:end])
        change(document)
        write_raw(folder / SECOND, document, content[end:] + extra)

    return damage


def last(document: Header) -> Header:
    """The entry of the last tensor."""
    entry: Header = max((e for n, e in document.items() if n != "__metadata__"), key=lambda e: e["data_offsets"][1])
    return entry


def entry(**values: Any) -> Damage:
    return header(lambda document: last(document).update(values))


def shifted(begin: int, end: int) -> Damage:
    """The last tensor's range moved."""

    def change(document: Header) -> None:
        offsets = last(document)["data_offsets"]
        last(document)["data_offsets"] = [offsets[0] + begin, offsets[1] + end]

    return header(change, bytes(max(end, 0)))


def index(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_json(folder / INDEX, change)


def mapped(name: str, file: str | None) -> Damage:
    """The index with the tensor in `file`, or without it."""

    def change(document: dict[str, Any]) -> None:
        if file is None:
            document["weight_map"].pop(name)
        else:
            document["weight_map"][name] = file

    return index(change)


def stray(file: str, *names: str) -> Damage:
    """A further file that holds tensors of these names."""
    return lambda folder: write_shard(folder / file, dict.fromkeys(names, ("BF16", (128,), None)))


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def repeated_key(folder: Path) -> None:
    content = (folder / SECOND).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    document = json.loads(content[8:end])
    name = next(name for name in document if name != "__metadata__")
    more = f', "{name}": {json.dumps(document[name])}}}'
    write_raw(folder / SECOND, content[8 : end - 1].decode() + more, content[end:])


def metadata(value: dict[str, str] | None, *files: str) -> Damage:
    """Shards with other metadata, None for none."""

    def damage(folder: Path) -> None:
        for file in files:
            content = (folder / file).read_bytes()
            end = 8 + int.from_bytes(content[:8], "little")
            document = json.loads(content[8:end])
            document.pop("__metadata__")
            write_raw(folder / file, document if value is None else {"__metadata__": value} | document, content[end:])

    return damage


def three_of_three(folder: Path) -> None:
    """Both shards numbered of three, the last one lost from folder and index."""
    for old, new in ((FIRST, "model-00001-of-00003.safetensors"), (SECOND, "model-00002-of-00003.safetensors")):
        renamed(folder, old, new)


def renumbered(folder: Path) -> None:
    """The second shard as the third of three."""
    renamed(folder, SECOND, "model-00003-of-00003.safetensors")


def renamed(folder: Path, old: str, new: str) -> None:
    """A shard under another name, in the index too."""

    def change(document: dict[str, Any]) -> None:
        document["weight_map"] = {n: new if file == old else file for n, file in document["weight_map"].items()}

    (folder / old).rename(folder / new)
    edit_json(folder / INDEX, change)


def folder_in_place(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


HEADERS: dict[str, Damage] = {
    "an empty file": raw(b""),
    "seven bytes": raw(b"1234567"),
    "a header longer than the file": raw((1 << 40).to_bytes(8, "little") + b"{}"),
    "a header cut off": cut(lambda size: 40),
    "a header that is a list": raw((2).to_bytes(8, "little") + b"[]"),
    "a header that is no JSON": raw((4).to_bytes(8, "little") + b"{,,}"),
    "a header that is no UTF-8": raw((4).to_bytes(8, "little") + b"{\xff\xfe}"),
    "a dtype that nobody knows": entry(dtype="BF17"),
    "an entry without dtype": header(lambda document: last(document).pop("dtype")),
    "an entry without offsets": header(lambda document: last(document).pop("data_offsets")),
    "a negative dimension": entry(shape=[-64, 128]),
    "a dimension that is text": entry(shape=["64", 128]),
    "an HTML page of a proxy": raw(b"<!DOCTYPE html><html><body>404 Not Found</body></html>"),
}

DATA: dict[str, Damage] = {
    "one byte short": cut(lambda size: size - 1),
    "cut within the data": cut(lambda size: size * 2 // 3),
    "bytes behind the data": header(lambda document: None, bytes(16)),
    "a shape larger than its range": entry(shape=[640, 128]),
    "a tensor that overlaps its neighbour": shifted(-256, -256),
    "a hole between tensors": shifted(64, 64),
}


def again(name: str, *shape: int) -> Damage:
    """The tensor a second time, in a further shard that the index names for it."""

    def damage(folder: Path) -> None:
        write_shard(folder / "model-extra.safetensors", {name: ("BF16", shape, None)})
        edit_json(folder / INDEX, lambda document: document["weight_map"].update({name: "model-extra.safetensors"}))
        edit_json(folder / INDEX, lambda document: document["metadata"].pop("total_size"))

    return damage


FILES = [
    *damages("F01", DENSE, HEADERS),
    Defect("a folder in place of a shard", DENSE, "F15", damage=folder_in_place),
    *damages("F02", DENSE, DATA),
    *damages("F02", FP8, {"one byte short": DATA["one byte short"]}),
    Defect("a git-lfs pointer", DENSE, "F03", damage=text(SECOND, LFS)),
    Defect("a git-lfs pointer", AWQ, "F03", damage=text(SECOND, LFS)),
    Defect(
        "both shards are git-lfs pointers", EXPERTS, "F03", damage=lambda f: [text(n, LFS)(f) for n in (FIRST, SECOND)]
    ),
    Defect("a shard is missing", DENSE, "F04", damage=lambda folder: (folder / SECOND).unlink()),
    Defect("a shard is missing", BODY, "F04", damage=lambda folder: (folder / FIRST).unlink()),
    Defect("a shard is missing", FP8_DYNAMIC, "F04", damage=lambda folder: (folder / FIRST).unlink()),
    Defect("a shard is missing", FP8, "F04", damage=lambda folder: (folder / SECOND).unlink()),
    Defect(
        "one tensor in a file that is not there",
        DENSE,
        "F04",
        damage=mapped("model.norm.weight", "model-extra.safetensors"),
        also=("F06",),
    ),
    Defect("a further shard that nobody lists", DENSE, "F05", damage=stray("model-extra.safetensors", "extra.weight")),
    Defect("a shard of an older export", AWQ, "F05", damage=stray("old.safetensors", "model.norm.weight")),
    Defect("a tensor left out of the index", DENSE, "F06", damage=mapped("model.norm.weight", None)),
    Defect("a packed tensor left out of the index", BODY, "F06", damage=mapped("lm_head.weight_packed", None)),
    Defect("the index without a tensor of the draft", BODY, "F06", damage=mapped("mtp.fc.weight", None)),
    Defect("a tensor under a wrong shard", DENSE, "F07", damage=mapped("lm_head.weight", SECOND)),
    Defect("an indexed tensor that is nowhere", DENSE, "F07", damage=mapped("model.layers.1.extra.weight", SECOND)),
    Defect("an indexed draft tensor that is nowhere", EXPERTS, "F07", damage=mapped("mtp.fc.bias", SECOND)),
    Defect("a tensor in two shards", DENSE, "F08", damage=again("model.norm.weight", 128)),
    Defect("the head in two shards", EXPERTS, "F08", damage=again("lm_head.weight", 64, 128)),
]


INDEXES = [
    *damages(
        "F09",
        DENSE,
        {
            "an index without metadata": index(lambda document: document.pop("metadata")),
            "an index without weight_map": index(lambda document: document.pop("weight_map")),
            "an empty weight_map": index(lambda document: document.update(weight_map={})),
            "an index that is no JSON": text(INDEX, "{"),
            "an index that is a list": text(INDEX, "[]"),
            "metadata that is text": index(lambda document: document.update(metadata="none")),
            "no index beside two shards": lambda folder: (folder / INDEX).unlink(),
        },
    ),
    Defect("config.json cut off", DENSE, "F09", damage=text("config.json", '{"model_type": "llama",'), also=("C01",)),
    Defect("config.json cut off", FP8, "F09", damage=text("config.json", '{"model_type": "llama",')),
    *damages(
        "F10",
        DENSE,
        {
            "total_size of another export": index(lambda document: document["metadata"].update(total_size=1)),
            "total_size off by one": index(lambda d: d["metadata"].update(total_size=d["metadata"]["total_size"] + 1)),
        },
    ),
    Defect(
        "total_size with half a byte",
        DENSE,
        "S02",
        damage=index(lambda d: d["metadata"].update(total_size=1.5)),
        also=("F10",),
    ),
    Defect("total_size of another export", AWQ, "F10", damage=index(lambda d: d["metadata"].update(total_size=1.0))),
    Defect("model.safetensors beside the index", DENSE, "F11", damage=stray("model.safetensors", "model.norm.weight")),
    Defect(
        "a merged model.safetensors beside shards",
        FP8,
        "F11",
        damage=lambda f: shutil.copy(f / FIRST, f / "model.safetensors"),
    ),
    *damages(
        "F12",
        DENSE,
        {
            "a pickle beside the shards": text("pytorch_model.bin", "PK"),
            "a GGUF beside the shards": text("model-q4_k_m.gguf", "GGUF"),
            "an optimizer state": text("optimizer.pt", "PK"),
            "Mistral's consolidated.safetensors": stray("consolidated.safetensors", "norm.weight"),
        },
    ),
    *damages(
        "F13",
        DENSE,
        {
            "no metadata in the headers": metadata(None, FIRST, SECOND),
            "one shard without format": metadata({}, SECOND),
            "format mlx": metadata({"format": "mlx"}, FIRST, SECOND),
        },
    ),
    Defect("shards numbered of two and of three", DENSE, "F14", damage=renumbered),
    Defect("the third of three is not there", DENSE, "F14", damage=three_of_three),
    Defect("a name twice in a header", DENSE, "F15", damage=repeated_key),
    Defect("an index that leaves the folder", DENSE, "F15", damage=mapped("model.norm.weight", "../other.safetensors")),
    Defect(
        "an index with an absolute path", DENSE, "F15", damage=mapped("model.norm.weight", "/tmp/other.safetensors")
    ),
    Defect("a blank behind a name", FP8, "F15", edit=add("model.norm.weight ")),
    *defects(
        "F15",
        AWQ,
        {
            "model.model": rename(lambda name: name.replace("model.layers.1.", "model.model.layers.1.")),
            "a line break in a name": add("model.extra\n.weight"),
        },
    ),
]

ALL: list[Defect] = [*FILES, *INDEXES]
