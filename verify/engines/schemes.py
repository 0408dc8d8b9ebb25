"""Config groups as vLLM and SGLang compare them: parsed by compressed-tensors, so that spelled-out defaults are equal.

Source: `QuantizationArgs` in compressed_tensors/quantization/quant_args.py, of 0.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Arguments = Mapping[str, Any]

DEFAULTS: Arguments = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "dynamic": False,
    "zp_dtype": "torch.int8",
    "observer_kwargs": {},
}
OBSERVER = "memoryless_minmax"


class Scheme(NamedTuple):
    """What the engines compare of the schemes of an expert's projections."""

    weights: Arguments | None
    input_activations: Arguments | None
    format: str | None


def scheme_of(group: Mapping[str, Any], inherited: str | None = None) -> Scheme:
    """The scheme of a config group; one without a format has the `inherited`."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    return Scheme(_arguments(weights), _arguments(inputs), group.get("format") or inherited)


def _arguments(data: object) -> Arguments | None:
    """The arguments with their defaults; None for anything but a mapping, which the schema tells of."""
    if not isinstance(data, Mapping) or not data:
        return None
    full = {**DEFAULTS, **{key: value for key, value in data.items() if value is not None}}
    full.setdefault("strategy", _strategy(full.get("group_size")))
    if not full["dynamic"]:
        full.setdefault("observer", OBSERVER)
    return full


def _strategy(group_size: object) -> str:
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"
