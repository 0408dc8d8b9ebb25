"""Recipes, texts and bases for the tests of calibrated builds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from building import LLAMA, Entries, llama_entries, write_checkpoint

from checkpoint import open_checkpoint
from surgery.gptq import Environment, Handover, handover
from surgery.recipe import load_recipe

BODY = [
    r"re:mtp\.",
    r"re:model\.visual\.",
    r"re:.*\.in_proj_[ab]$",
    r"re:.*\.mlp\.gate$",
    r"re:.*\.shared_expert_gate$",
]
"""What the published full-body build leaves dense."""

WORDS = "the of and to in is it you that he was for on are with as they be at one have this from word but what"

SOUND = Environment(
    executable="/opt/python",
    python="3.11.9",
    packages={"llmcompressor": "0.14.0.1", "compressed-tensors": "0.19.0", "transformers": "5.17.0", "torch": "2.13.0"},
    unmet=(),
    has_class=True,
    accelerator=None,
    accelerator_bytes=0,
)


def write_recipe(folder: Path, *, gptq: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A recipe for INT4 g128 of every Linear, with a text of its own; `changes` replace sections, None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(3)
    texts = [" ".join(chosen.choices(WORDS.split(), k=40)) + "." for _ in range(80)]
    (folder / "talk.txt").write_text("\n\n".join(texts), encoding="utf-8")
    document: dict[str, Any] = {
        "title": "A calibrated build",
        "gptq": {"groups": [{"targets": ["Linear"], "bits": 4, "group_size": 128}], "ignore": BODY, **(gptq or {})},
        "calibration": {
            "sequences": 6,
            "min_tokens": 64,
            "held_back": 2,
            "sources": [{"file": "talk.txt", "share": 1}],
        },
        **changes,
    }
    path = folder / "build.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path


def dense_llama(folder: Path, *, entries: Entries | None = None, **config: Any) -> Path:
    """A dense Llama of zeros, with a tokenizer that preflight is content with."""
    return write_checkpoint(folder, entries or llama_entries(), {**LLAMA, **config})


def build(recipe: Path, base: Path) -> Handover:
    return handover(load_recipe(recipe), open_checkpoint(base))
