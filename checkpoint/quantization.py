"""Where a config.json states how its weights are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `quantization_config` that vLLM reads: of the top level, else of the text section; None if there is none."""
    for section in (config, config.get("text_config")):
        found = section.get("quantization_config") if isinstance(section, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return None
