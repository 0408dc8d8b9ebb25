"""Sources, recipes and tokenizers for the tests of calibration data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from surgery.calibration import Calibration, CalibrationSet, build_calibration, calibration_of

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def turns(*contents: str, system: str | None = None) -> dict[str, Any]:
    """A conversation in which user and assistant take turns."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages += [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return {"messages": messages}


def talk(number: int, words: int = 30, system: str | None = None) -> dict[str, Any]:
    """Conversation `number`, which alone says `mark NUMBER;`."""
    return turns(f"mark {number}; what is it?", " ".join(["yes"] * words), system=system)


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def wanted(folder: Path, *sources: dict[str, Any], **fields: Any) -> Calibration:
    """The section of a recipe in `folder`: one sequence of at least one token, unless `fields` say otherwise."""
    return calibration_of({"sequences": 1, "min_tokens": 1, "sources": list(sources), **fields}, folder / "recipe.yaml")


def built(model: Path, folder: Path, *sources: dict[str, Any], **fields: Any) -> CalibrationSet:
    return build_calibration(wanted(folder, *sources, **fields), model)


def tokenizer_of(model: Path, target: Path, template: str | None = None) -> Path:
    """A folder with the tokenizer of `model` alone, and another chat template if given; no template for ""."""
    target.mkdir(parents=True)
    for name in TOKENIZER:
        shutil.copy(model / name, target)
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    if template == "":
        (target / "chat_template.jinja").unlink()
    return target


def marks(text: str) -> set[int]:
    """Numbers of the `talk`s that a decoded text has."""
    return {int(piece.split(";")[0]) for piece in text.split("mark ")[1:]}
