"""Why a target was not reached, in `reasons.toml`: a table for each case, a line for each figure."""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).with_name("reasons.toml")


def reasons(path: Path = FILE) -> dict[str, dict[str, str]]:
    """The reasons by case and by name of the figure."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
