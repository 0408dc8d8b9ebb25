"""The schemas that come with the package, by name."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SUFFIX = ".schema.json"


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The names of all schemas, sorted; a profile is called `profiles/NAME`."""
    paths = FOLDER.rglob(f"*{SUFFIX}")
    return tuple(sorted(path.relative_to(FOLDER).as_posix().removesuffix(SUFFIX) for path in paths))


def load(name: str) -> dict[str, Any]:
    """The schema called `name`, a fresh copy; KeyError that lists the known ones otherwise."""
    if name not in names():
        raise KeyError(f"no schema {name!r}; known are {', '.join(names())}")
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    return schema
