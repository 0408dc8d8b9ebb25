"""What GPTQ did to each module, seen where llm-compressor computes it.

llm-compressor logs a rounded loss and, at the end, the number of modules whose Hessian it could not invert; of a module
that saw no activation at all it says nothing, and writes zeros. So both steps of its work are watched: the one that
gathers a batch's Hessians and the one that quantizes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WATCHED = ("prepare_batch", "quantize_weight")
"""Functions of `llmcompressor.modifiers.gptq.base` (0.14)."""


@dataclass(frozen=True)
class Record:
    """One module. `loss` is GPTQ's own; `error` is the size of the error of its outputs on the calibration rows,
    relative to the size of the outputs: None where those are 0, or the module was rounded to nearest (`fallback`).

    `dead` are input columns that were 0 in every row: GPTQ zeroes their weights.
    """

    loss: float
    error: float | None
    seconds: float
    dead: int
    columns: int
    fallback: bool


@dataclass(frozen=True)
class _Prepared:
    """A module before it is quantized: trace(W H W^T), the mean of H's diagonal as GPTQ dampens it, dead columns."""

    module: Any
    energy: float
    diagonal: float
    dead: torch.Tensor


@dataclass
class Recorder:
    """Gathers records by module name. `hessian_bytes` is the most that was held at a time."""

    names: Mapping[Any, str]
    records: dict[str, Record] = field(default_factory=dict)
    hessian_bytes: int = 0
    _batch: list[_Prepared] = field(default_factory=list)
    _started: float = 0.0

    def prepared(self, prepare: Callable[..., Any], batch: list[Any], *rest: Any) -> Any:
        """In place of `prepare_batch(batch, qparams, hessians, samples)`."""
        held = sum(hessian.nbytes for hessian in rest[1].values())
        self.hessian_bytes = max(self.hessian_bytes, held)
        self._started = time.monotonic()
        prepared = prepare(batch, *rest)
        self._batch = [_prepared(*one) for one in zip(batch, prepared[0], prepared[1], strict=True)]
        return prepared

    def quantized(self, quantize: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of `quantize_weight`, which returns weights, losses and fallbacks of the batch."""
        result = quantize(*args, **kwargs)
        seconds = (time.monotonic() - self._started) / len(self._batch)
        for before, weight, loss, fallback in zip(self._batch, *(part.detach() for part in result), strict=True):
            added = kwargs["percdamp"] * before.diagonal
            error = None if fallback else _error(before, weight, float(loss), added)
            record = Record(float(loss), error, seconds, int(before.dead.sum()), before.dead.numel(), bool(fallback))
            self.records[self.names[before.module]] = record
        return result


@contextmanager
def recording(model: Any) -> Iterator[Recorder]:
    """Watch llm-compressor quantize modules of `model`. Raises AttributeError where its code is another."""
    from llmcompressor.modifiers.gptq import base

    recorder = Recorder({module: name for name, module in model.named_modules()})
    prepare, quantize = (getattr(base, name) for name in WATCHED)
    base.prepare_batch = lambda *args: recorder.prepared(prepare, *args)
    base.quantize_weight = lambda *args, **kwargs: recorder.quantized(quantize, *args, **kwargs)
    try:
        yield recorder
    finally:
        base.prepare_batch, base.quantize_weight = prepare, quantize


def _prepared(module: Any, weight: torch.Tensor, hessian: torch.Tensor) -> _Prepared:
    diagonal = hessian.diagonal()
    dead = diagonal == 0
    mean = float(diagonal.masked_fill(dead, 1.0).mean())  # as `factorize_hessian` does before it dampens
    return _Prepared(module, float(((weight @ hessian) * weight).sum()), mean, dead)


def _error(before: _Prepared, weight: torch.Tensor, loss: float, added: float) -> float | None:
    """With D = Q - W and the damped Hessian H + aI, loss = trace(D (H + aI) D^T) / 2, of which aI is no error."""
    if before.energy <= 0:
        return None
    changed = (weight.float() - before.module.weight.detach().float())[:, ~before.dead]
    squared = max(0.0, 2 * loss - added * float(changed.square().sum()))
    return math.sqrt(squared / before.energy)
