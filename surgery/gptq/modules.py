"""Which modules GPTQ is to pack, read off the base's headers: those that round-to-nearest by the same groups would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checkpoint import Checkpoint, Computed, Draft, Problem
from checkpoint.folding import fold
from surgery.gptq.settings import Settings
from surgery.quantize import quantize
from surgery.scheme import Scheme
from surgery.work import PackRows

_PACKED = "weight_packed"


@dataclass(frozen=True)
class Planned:
    """A module to pack: its weight has `rows` x `columns` of `dtype`."""

    name: str
    rows: int
    columns: int
    dtype: str
    scheme: Scheme

    @property
    def hessian_bytes(self) -> int:
        """Of its Hessian: columns x columns in F32 (llm-compressor, `make_empty_hessian`)."""
        return self.columns * self.columns * 4

    @property
    def owner(self) -> str:
        """The block it is part of: `model.layers.0.self_attn`."""
        return self.name.rpartition(".")[0]


def packed_draft(base: Checkpoint, settings: Settings) -> Draft:
    """The layout that the export must have. The draft's problems are why the modules cannot be packed."""
    return quantize(Draft.of(base), settings.groups, ignore=settings.ignore)


def planned_modules(draft: Draft) -> tuple[Planned, ...]:
    """What `draft` packs, in its order."""
    return tuple(
        Planned(module, work.source.shape[0], work.source.shape[1], work.source.dtype, work.scheme)
        for module, work in _packing(draft)
    )


def _packing(draft: Draft) -> Iterator[tuple[str, PackRows]]:
    for name, source in draft.tensors.items():
        if isinstance(source, Computed) and source.output == _PACKED and isinstance(source.work, PackRows):
            yield name.removesuffix(f".{_PACKED}"), source.work


def precision_problems(modules: Iterable[Planned]) -> Iterator[Problem]:
    """Weights that are stored in another precision than the one the model is loaded and calibrated in."""
    for folded in fold((module.name, module.dtype) for module in modules if module.dtype != "BF16"):
        remedy = "Start from the BF16 release of the model"
        yield Problem("source-dtype", f"is stored as {folded.state}", None, folded.pattern, "BF16", remedy)
