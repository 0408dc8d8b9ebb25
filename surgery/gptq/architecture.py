"""Which class of transformers a model is loaded by: the one its config names, and never one that drops a part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkpoint import CONFIG, Problem

_WHOLE = "ForConditionalGeneration"
_TEXT = "ForCausalLM"


def model_class(config: Mapping[str, Any]) -> str | None:
    """The first of the config's `architectures`."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def class_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Why the model cannot be loaded whole by the class that its config names."""
    name = model_class(config)
    if name is None:
        yield Problem("class-unnamed", "names no architecture", CONFIG, expected="the class under `architectures`")
    elif name.endswith(_TEXT) and _has_vision(config):
        # its export has no tower, and a config that still promises one (llm-compressor example scripts use this class)
        remedy = f"Name the class that ends in {_WHOLE}"
        yield Problem(
            "class-drops-vision", f"{name} loads no vision tower, which the config has", CONFIG, remedy=remedy
        )
    elif not name.endswith((_WHOLE, _TEXT)):
        expected = f"a class that ends in {_WHOLE} or {_TEXT}"
        yield Problem("class-unfit", f"{name} is no generating model", CONFIG, expected=expected)


def _has_vision(config: Mapping[str, Any]) -> bool:
    return any(isinstance(config.get(key), Mapping) for key in ("vision_config", "audio_config"))
