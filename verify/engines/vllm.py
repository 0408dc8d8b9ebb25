"""vLLM: `CompressedTensorsConfig` of model_executor/layers/quantization/compressed_tensors/compressed_tensors.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verify.engines.engine import Engine, View
from verify.engines.entries import config_groups, group_targets
from verify.engines.fused import FusedResolver, Manner
from verify.engines.resolution import LoadError, Resolution
from verify.engines.slots import Slot

EXPERTS = "RoutedExperts"
HEAD = r"lm_head"


def resolve_scope(
    engine: Engine, view: View, quantization: Mapping[str, Any], slots: tuple[Slot, ...]
) -> tuple[dict[str, Resolution], list[LoadError]]:
    """What vLLM builds in one scope. A layer that no target covers is built dense."""
    if not engine.has("packed_head"):
        view = replace(view, unquantized=(*view.unquantized, HEAD))
    manner = Manner((EXPERTS,), shards_first=engine.has("shards_before_class"), inherits_format=True)
    return FusedResolver(engine, view, _without_attention(quantization), manner).resolve(slots)


def _without_attention(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """`from_config` drops a group whose only target is an attention class."""
    groups = {
        name: group
        for name, group in config_groups(quantization).items()
        if not (len(group_targets(group)) == 1 and group_targets(group)[0].endswith("Attention"))
    }
    return {**quantization, "config_groups": groups}
