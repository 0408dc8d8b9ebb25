"""The JSON documents of a checkpoint: index and config.json, through all that `ckpt verify` makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from checkpoint import Checkpoint, UnreadableCheckpoint, survey
from checkpoint.document import Document, read_document
from checkpoint.folding import fold, unfold
from checkpoint.jsonedit import edit_json
from checkpoint.layout import fold_entries, layout
from reliability.fuzzing import ground
from reliability.fuzzing.ground import INDEX, LLAMA, PACKED, QWEN
from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.target import Target, expect

LAYOUTS = 8
"""One list of so many becomes part of a layout document, which takes longer than all else."""

REPEATS, TENSORS = 500, 3_000
"""Layers or experts, and tensors, that a config may call for here, so that no input costs seconds: the limits that
users have are tried by `reliability.hostile`."""

MANY = 200
"""Names that are unfolded again; a hostile pattern stands for more than memory holds."""


def index(data: bytes) -> None:
    """Survey a folder with this index; what can be read at all can be edited and says the same."""
    path, known = ground.dense("index") / INDEX, _surveyed("index")
    path.write_bytes(data)
    try:
        survey(path.parent, known=known)
        edits(read_document(path))
    except UnreadableCheckpoint as refusal:
        expect(bool(str(refusal)), "a refusal without a word")


def edits(document: Document) -> None:
    """An edit to the same value changes no byte, one to another value says that value, and back it is the old one."""
    value = document.value
    expect(edit_json(document.text, value) == document.text, "an edit to the same value changed the text")
    other = {**value, "added": [1, {"a": None}]}
    text = edit_json(document.text, other)
    expect(_same(json.loads(text), other), "an edit says something else")
    less = {key: one for number, (key, one) in enumerate(value.items()) if number}
    expect(_same(json.loads(edit_json(text, less)), less), "an edit that removes says something else")


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


def config(data: bytes) -> None:
    """Verify a folder with this config.json, at headers, and describe it as a layout."""
    folder = ground.experts("config") if b"text_config" in data else ground.dense("config")
    (folder / "config.json").write_bytes(data)
    _judged(folder)


def quantization(data: bytes) -> None:
    """As `config`, with a config.json that is sound but for its quantization_config."""
    folder = ground.experts("config") if len(data) % 2 else ground.dense("config")
    known = QWEN if len(data) % 2 else LLAMA
    rest = json.dumps({key: value for key, value in known.items() if key != "quantization_config"})
    (folder / "config.json").write_bytes(rest[:-1].encode() + b', "quantization_config": ' + data + b"}")
    _judged(folder)


def side(data: bytes) -> None:
    """Verify with these bytes as one of the side files that are read, by the first of them which one."""
    folder = ground.experts("side")
    name = SIDE_FILES[data[0] % len(SIDE_FILES)] if data else SIDE_FILES[0]
    for other in SIDE_FILES:
        (folder / other).write_bytes(data[1:] if other == name else b"{}")
    _judged(folder, only=("X",))


def _judged(folder: Path, **options: Any) -> None:
    from verify import verify

    try:
        with (
            patch("checkpoint.families.values.MOST_REPEATS", REPEATS),
            patch("checkpoint.families.spec.MOST_TENSORS", TENSORS),
        ):
            report = verify(survey(folder), **options)
        said = list(report.lines())
        expect(all(line.isprintable() for line in said), f"a line that is not printable: {said}")
        expect(json.loads(json.dumps(report.document())) == report.document(), "a report that is not JSON")
    except UnreadableCheckpoint as refusal:
        expect(bool(str(refusal)), "a refusal without a word")


def names(data: bytes) -> None:
    """Fold names and unfold them again; of some, the layout document of a checkpoint that has them in its lists."""
    try:
        entries = data.decode().split("\n")
    except UnicodeDecodeError:
        return
    folded = fold((name, None) for name in dict.fromkeys(entries))
    expect(sum(one.count for one in folded) == len(set(entries)), "folding lost a name")
    if len(entries) <= MANY:
        expect(sorted(n for one in folded for n in unfold(one.pattern)) == sorted(set(entries)), "names changed")
    if len(data) % LAYOUTS == 0:
        _described(entries)


def _described(entries: list[str]) -> None:
    checkpoint = _surveyed("layout")
    group = {"targets": entries[::2], "weights": {"num_bits": 4, "group_size": len(entries)}}
    stated = {"quantization_config": {"config_groups": {entries[0]: group}, "ignore": entries[1::2]}}
    document = Document.of({**LLAMA, **stated})
    described = layout(replace(checkpoint, config_document=document))
    expect(described["quantization"]["ignore"] == fold_entries(entries[1::2]), "another ignore list")


@cache
def _surveyed(user: str) -> Checkpoint:
    """The checkpoint as it was before anything was changed in it."""
    return survey(ground.dense(user))


def index_seeds() -> Iterator[bytes]:
    yield (ground.dense("seed") / INDEX).read_bytes()
    yield b'{"metadata": {}, "weight_map": {"a": "../x.safetensors", "b": 1}}'
    yield b'{\n  "weight_map": {\n    "lm_head.weight": "model-00001-of-00002.safetensors"\n  }\n}\n'


def config_seeds() -> Iterator[bytes]:
    yield from (json.dumps(one).encode() for one in (LLAMA, QWEN))


def quantization_seeds() -> Iterator[bytes]:
    for groups in (PACKED["config_groups"], {"W4A16": ["Linear"]}, {}):
        yield json.dumps({**PACKED, "config_groups": groups}).encode()
        yield json.dumps({**PACKED, "config_groups": groups}).encode() + b" "


def side_seeds() -> Iterator[bytes]:
    settings = {"tokenizer_class": "X", "added_tokens_decoder": {"60": {"content": "a"}}, "chat_template": "{{ x }}"}
    special = {"eos_token_id": [3, 2], "image_processor_type": "Y", "extra_special_tokens": {"a": "b"}}
    for number in range(len(SIDE_FILES)):
        yield bytes([number]) + json.dumps(settings | special).encode()


def mutate_side(data: bytes, random: Random) -> bytes:
    return data[:1] + mutate_json(data[1:], random)


def name_seeds() -> Iterator[bytes]:
    yield "\n".join(f"model.layers.{n}.mlp.experts.{e}.up_proj" for n in range(2) for e in range(3)).encode()
    yield b"a.{0-3}.b\n{1}\nre:.*x\nlm_head\n01.2\n\n{{4}}"


def other_names(data: bytes, random: Random) -> bytes:
    """A list with a line changed in a number, repeated, or joined to another."""
    lines = data.split(b"\n")
    number = random.randrange(len(lines))
    digit = str(random.choice((0, 1, 9, 10, 999_999_999, 1_000_000_000))).encode()
    parts = lines[number].split(b".")
    parts[random.randrange(len(parts))] = random.choice((digit, b"{%s}" % digit, b"", b"{0-%s}" % digit, parts[0]))
    lines.insert(random.randrange(len(lines) + 1), b".".join(parts))
    return b"\n".join(lines)


WORDS = ('"metadata"', '"total_size"', '"weight_map"', "model-00001-of-00002.safetensors", "../", "lm_head.weight")
SIDE_FILES = ("tokenizer_config.json", "generation_config.json", "preprocessor_config.json", "special_tokens_map.json")
SIDE_KEYS = (
    "tokenizer_class",
    "added_tokens_decoder",
    "chat_template",
    "eos_token_id",
    "extra_special_tokens",
    "auto_map",
)
KEYS = (*LLAMA, *QWEN["text_config"], *PACKED, "weights", "targets", "re:", "Linear", "actorder", "kv_cache_scheme")

TARGETS = (
    Target("index", "model.safetensors.index.json", index, index_seeds, mutate_json, WORDS, longest=8192),
    Target("config", "config.json, through verify at headers", config, config_seeds, mutate_json, KEYS, asked=500_000),
    Target(
        "quantization",
        "quantization_config, likewise",
        quantization,
        quantization_seeds,
        mutate_json,
        KEYS,
        asked=500_000,
    ),
    Target(
        "side", "JSON side files, through the rules on them", side, side_seeds, mutate_side, SIDE_KEYS, asked=300_000
    ),
    Target("layout", "names, folded and unfolded, and the layout document", names, name_seeds, other_names, ("re:",)),
)
