"""SGLang: `CompressedTensorsConfig` of srt/layers/quantization/compressed_tensors/compressed_tensors.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verify.engines.engine import Engine, View
from verify.engines.fused import FusedResolver, Manner
from verify.engines.resolution import LoadError, Resolution
from verify.engines.slots import Slot

EXPERTS = ("FusedMoE", "DeepEPMoE")
HEAD = r"lm_head"
MANNER = Manner(EXPERTS, suffixes=True, head_by_class=False, must_match=True)


def resolve_scope(
    engine: Engine, view: View, quantization: Mapping[str, Any], slots: tuple[Slot, ...]
) -> tuple[dict[str, Resolution], list[LoadError]]:
    """What SGLang builds in one scope. A layer that no target covers is an error."""
    if not engine.has("packed_head"):
        view = replace(view, unquantized=(*view.unquantized, HEAD))
    if view.scope == "draft" and not engine.has("draft_shards"):
        view = replace(view, matching={})
    return FusedResolver(engine, view, quantization, MANNER).resolve(slots)
