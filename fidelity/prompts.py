"""What the models are asked: prompts of a file, or the thirty that come with the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from checkpoint import Refused
from checkpoint.errors import bounded
from fidelity.jsonl import read_lines, repeated

SHIPPED = "shipped"
CODE = "prompts"


@dataclass(frozen=True)
class Prompt:
    """One question. `text` is None for a conversation, `turns` are its messages otherwise too.

    `format`: the probe that a reply must pass, as `{"probe": "items", "count": 5}`. `long`: a long reply is expected.
    """

    id: str
    text: str | None
    turns: tuple[Mapping[str, Any], ...]
    format: Mapping[str, Any] | None = None
    long: bool = False


@dataclass(frozen=True)
class PromptSet:
    """Prompts in the order of their file. `sha256` is of what they say: of the objects, as JSON with sorted keys."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]


def shipped_prompts() -> PromptSet:
    """Thirty neutral prompts: facts, sums, code, translations, lists, JSON, single words, long replies."""
    return _read(Path(str(files("fidelity") / "prompts.jsonl")), SHIPPED)


def read_prompts(path: Path) -> PromptSet:
    """The prompts of a JSONL file. Refuses one that is unreadable, empty, or wrong in any line, with all that is."""
    return _read(path, path.name)


def _read(path: Path, name: str) -> PromptSet:
    lines = read_lines(path, "fidelity_prompt", CODE)
    problems = list(repeated([(number, record["id"]) for number, record in lines], path, CODE))
    if problems:
        raise Refused(bounded(problems))
    records = [record for _, record in lines]
    digest = hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
    return PromptSet(name, digest, tuple(map(_prompt, records)))


def _prompt(record: Mapping[str, Any]) -> Prompt:
    text = record.get("prompt")
    turns = record["messages"] if text is None else [{"role": "user", "content": text}]
    return Prompt(record["id"], text, tuple(turns), record.get("format"), record.get("long", False))
