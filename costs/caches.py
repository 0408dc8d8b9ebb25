"""What a stream keeps beside the weights: the KV cache of attention, and the states of linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from checkpoint.families import Decoder, Family, State
from checkpoint.quantization import quantization_config
from costs.serving import WIDTHS, Serving

MODEL_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class Caches:
    """In bytes, of one stream on one rank.

    `kv_token` is what a token of context takes in the body's KV caches, `draft_kv_token` in that of one MTP layer.
    `kv_dtype` and `state_dtype` are what was assumed, with the reason in words; `widths` are the bytes of a value of
    the states that are in either dtype.
    """

    kv_token: int
    draft_kv_token: int
    kv_dtype: str
    state_dtype: str | None
    states: tuple[State, ...]
    ranks: int
    widths: Mapping[str, int]

    @property
    def state(self) -> int:
        """What a stream keeps: one copy of each state. A step reads it."""
        return sum(self._bytes(state, 0) for state in self.states)

    def written(self, drafted: int) -> int:
        """What a step writes that verifies `drafted` tokens: a copy for each token, a window that is longer by them.

        vLLM keeps a copy after each token so that it can go back to the last accepted one (mamba_utils.py, `num_spec`;
        fla/ops/fused_recurrent.py, INPLACE_FINAL_STATE).
        """
        return sum(self._bytes(state, drafted) for state in self.states)

    def _bytes(self, state: State, drafted: int) -> int:
        first, *others = state.shape
        sides = [-(-first // self.ranks), *others]
        if state.drafted == "widens":
            sides[-1] += drafted
        copies = 1 + drafted if state.drafted == "copies" else 1
        return state.layers * copies * prod(sides) * self.widths[state.dtype]


def caches(family: Family, decoder: Decoder, config: Mapping[str, Any], serving: Serving, dtype: str | None) -> Caches:
    """The caches of a model whose config states `dtype` (bfloat16, if it states none)."""
    model = MODEL_DTYPES[dtype or "BF16"]
    kv, why_kv = _kv_dtype(config, serving, model)
    state, why_state = _state_dtype(family, config, serving, model)
    heads = max(1, -(-decoder.kv_heads // serving.tp))
    layer = heads * decoder.kv_width * WIDTHS[kv]
    return Caches(
        kv_token=decoder.kv_layers * layer,
        draft_kv_token=layer if decoder.draft_kv_layers else 0,
        kv_dtype=why_kv,
        state_dtype=why_state if decoder.states else None,
        states=decoder.states,
        ranks=serving.tp,
        widths={"model": WIDTHS[model], "state": WIDTHS[state]},
    )


def _kv_dtype(config: Mapping[str, Any], serving: Serving, model: str) -> tuple[str, str]:
    """(dtype, the same with the reason): as asked, else FP8 if the checkpoint has a scheme for it, else the model's."""
    if serving.kv_dtype != "auto":
        return serving.kv_dtype, serving.kv_dtype
    if (quantization_config(config) or {}).get("kv_cache_scheme"):
        return "fp8", "fp8 (kv_cache_scheme of the checkpoint)"
    return model, f"{model} (the model's)"


def _state_dtype(family: Family, config: Mapping[str, Any], serving: Serving, model: str) -> tuple[str, str]:
    """(dtype, the same with the reason): as asked, else what the config states, else the model's (vLLM's `auto`:
    models/config.py and mamba_utils.py)."""
    if serving.state_dtype != "auto":
        return serving.state_dtype, serving.state_dtype
    key = family.decoding.state_dtype if family.decoding else None
    stated = family.text(config).get(key) if key else None
    if isinstance(stated, str) and stated in WIDTHS:
        return stated, f"{stated} ({key} of config.json)"
    return model, f"{model} (the model's)"
