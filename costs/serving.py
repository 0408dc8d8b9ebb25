"""How a checkpoint is served: what the costs depend on beside the checkpoint itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

KvDtype = Literal["auto", "bfloat16", "float16", "fp8"]
StateDtype = Literal["auto", "float32", "bfloat16", "float16"]

KV_DTYPES: tuple[str, ...] = get_args(KvDtype)
STATE_DTYPES: tuple[str, ...] = get_args(StateDtype)

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Bytes of a value."""


@dataclass(frozen=True)
class Serving:
    """Assumptions. All costs are those of one of `tp` tensor-parallel ranks.

    `context` tokens are in the KV cache of each of `streams` streams that decode at once; `kv_dtype` and `state_dtype`
    are vLLM's `--kv-cache-dtype` and `--mamba-ssm-cache-dtype`; `speculative` tokens are drafted a step by the MTP
    head, each accepted with the probability `acceptance` if the one before it was; `text_only` leaves the vision tower
    out, as vLLM does under `--limit-mm-per-prompt` 0. Raises ValueError for numbers that mean nothing.
    """

    tp: int = 1
    context: int = 1024
    streams: int = 1
    kv_dtype: KvDtype = "auto"
    state_dtype: StateDtype = "auto"
    speculative: int = 0
    acceptance: float = 0.0
    text_only: bool = False

    def __post_init__(self) -> None:
        if min(self.tp, self.streams) < 1 or min(self.context, self.speculative) < 0:
            raise ValueError("ranks and streams are 1 or more, context and drafted tokens 0 or more")
        if not 0 <= self.acceptance <= 1:
            raise ValueError("acceptance is a probability, from 0 to 1")
        if self.kv_dtype not in KV_DTYPES or self.state_dtype not in STATE_DTYPES:
            raise ValueError(f"dtypes are {', '.join(KV_DTYPES)} for KV and {', '.join(STATE_DTYPES)} for states")

    @property
    def accepted(self) -> float:
        """Tokens that a stream emits in a speculative step on average: 1 + A + A^2 + ... + A^K."""
        return sum(self.acceptance**drafted for drafted in range(self.speculative + 1))
