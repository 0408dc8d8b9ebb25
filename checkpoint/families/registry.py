"""The family files that come with the package, by name and by `model_type`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from checkpoint.families.family import Family, parse_family

FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def family_names() -> tuple[str, ...]:
    """The names of all known families, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def load_family(name: str) -> Family:
    """The family called `name`; KeyError that lists the known ones otherwise."""
    if name not in family_names():
        raise KeyError(f"no family {name!r}; known are {', '.join(family_names())}")
    return parse_family(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def find_family(config: Mapping[str, Any]) -> Family | None:
    """The family whose `model_types` hold the config's `model_type`; None for an unknown or absent one."""
    name = _by_model_type().get(str(config.get("model_type")))
    return load_family(name) if name else None


@lru_cache(maxsize=1)
def _by_model_type() -> dict[str, str]:
    return {model_type: name for name in family_names() for model_type in load_family(name).model_types}
