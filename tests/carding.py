"""Cards of checkpoints made by hand, and what a Markdown reader of another project makes of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import qwen
from building import Entries, pack, quantization, write_checkpoint, write_json
from markdown_it import MarkdownIt
from markdown_it.token import Token

from cards import Card, Options, make_card

READER = MarkdownIt("commonmark", {"html": True}).enable("table")
"""CommonMark with GitHub's tables, HTML let through as it is."""

VERSION = "9.9"
HEAD = qwen.group("re:.*lm_head$", bits=8, group_size=128)


def card_of(folder: Path, *, manifest: dict[str, Any] | None = None, **options: Any) -> Card:
    return make_card(folder, Options(**options), manifest=manifest, version=VERSION)


def section_of(folder: Path, *, manifest: dict[str, Any] | None = None, **options: Any) -> str:
    return card_of(folder, manifest=manifest, **options).section


def experts(folder: Path) -> Path:
    """The small Qwen3.5-MoE with its routed experts INT4 in groups of 32, all else as in the release."""
    return written(folder, pack(qwen.entries(), qwen.body_experts, 4, 32), qwen.config(*qwen.SOUND))


def packed_head(folder: Path) -> Path:
    """The same with an INT8 head of its own group."""
    entries = pack(pack(qwen.entries(), qwen.body_experts, 4, 32), lambda module: module == "lm_head", 8, 128)
    groups = {"group_0": qwen.group("Linear"), "group_1": HEAD}
    ignored = [entry for entry in qwen.SOUND if entry != "lm_head"]
    return written(folder, entries, qwen.CONFIG | {"quantization_config": quantization(*ignored, **groups)})


def written(folder: Path, entries: Entries, config: dict[str, Any]) -> Path:
    """The checkpoint with the processors that a vision tower needs."""
    write_checkpoint(folder, entries, config)
    write_json(folder / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessorFast"})
    write_json(folder / "video_preprocessor_config.json", {"video_processor_type": "Qwen3VLVideoProcessor"})
    return folder


def rows_of(markdown: str, heading: str) -> list[list[str]]:
    """The cells, as text, of the first table after a heading, its header first."""
    tokens = READER.parse(markdown)
    start = next(n for n, one in enumerate(tokens) if one.type == "inline" and text_of(one) == heading)
    rows: list[list[str]] = []
    for token, following in zip(tokens[start:], tokens[start + 1 :], strict=False):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(text_of(following).replace("\u00a0", " "))
        elif token.type == "table_close":
            break
    return rows


def text_of(token: Token) -> str:
    """What a reader sees of an inline token."""
    return "".join(one.content for one in token.children or () if one.type in ("text", "code_inline", "softbreak"))


def fences_of(markdown: str) -> list[str]:
    """The content of every block of code."""
    return [token.content for token in READER.parse(markdown) if token.type == "fence"]


def html_of(markdown: str) -> list[str]:
    """Every piece of raw HTML that a reader would let through."""
    return [one.content.strip() for one in flat(READER.parse(markdown)) if one.type in ("html_inline", "html_block")]


def flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from flat(token.children or [])


def stored(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Every tensor's dtype and shape, from the headers, read here."""
    found: dict[str, tuple[str, list[int]]] = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        found |= {name: (one["dtype"], one["shape"]) for name, one in header.items()}
    return found


def parameters(tensors: dict[str, tuple[str, list[int]]]) -> int:
    """Weights and biases, a packed weight by its words: 32 bits hold eight INT4 or four INT8 values."""
    count = 0
    for name, (dtype, shape) in tensors.items():
        if dtype == "I32":
            count += prod(shape) * (4 if "lm_head" in name else 8)
        elif not name.endswith(("_scale", "_shape")):
            count += prod(shape)
    return count
