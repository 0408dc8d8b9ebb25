"""The rules, one file per subject. Importing a file registers its rules; `load_rules` imports them all."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

FILES = (
    "structure",
    "naming",
    "inventory",
    "experts",
    "triplets",
    "parallel",
    "config",
    "schemes",
    "matching",
    "mtp",
    "head",
    "observed",
    "side_files",
    "model_config",
    "content",
    "draft_content",
    "recomputed",
    "codes",
    "documents",
)


def load_rules() -> None:
    """Import every rule file once."""
    for subject in FILES:
        if find_spec(f"verify.rules.{subject}"):
            import_module(f"verify.rules.{subject}")
