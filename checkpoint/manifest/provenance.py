"""What a caller of `apply_plan` knows of a run and the plan does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Provenance:
    """`command` is the command line without what does not change bytes, folders in it by their last component;
    `recipe` what a recipe said, as JSON. Neither may hold a path that is absolute, or a token."""

    command: tuple[str, ...] | None = None
    recipe: Mapping[str, Any] | None = None
