"""Where a config.json states how its weights are quantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkpoint.errors import Problem

MOST_GROUPS = 4_096
MOST_PATTERNS = 4_096
MOST_ENTRIES = 500_000
"""Of a quantization_config; a list that names every module of the largest releases one by one has a fifth of these.

Every module is held against every group and every regular expression.
"""


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `quantization_config` that vLLM reads: of the top level, else of the text section; None if there is none."""
    for section in (config, config.get("text_config")):
        found = section.get("quantization_config") if isinstance(section, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return None


def excess(config: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """What a quantization_config has more of than any, so that to judge it would take for ever."""
    quantization = quantization_config(config) or {}
    groups, ignore = quantization.get("config_groups"), quantization.get("ignore")
    groups = groups if isinstance(groups, dict) else {}
    lists = [ignore, *(group.get("targets") if isinstance(group, dict) else group for group in groups.values())]
    entries = patterns = 0
    for found in lists:
        if isinstance(found, list):
            entries += len(found)
            patterns += sum(isinstance(entry, str) and entry.startswith("re:") for entry in found)
    counted = ((len(groups), MOST_GROUPS, "config_groups"), (entries, MOST_ENTRIES, "targets and ignore entries"))
    for count, most, what in (*counted, (patterns, MOST_PATTERNS, "regular expressions")):
        if count > most:
            yield Problem("config-excessive", f"{count:,} {what}", file, expected=f"at most {most:,}")
