"""What llm-compressor hands back: does it hold what was asked, and the one draft that mends the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from checkpoint import Checkpoint, Computed, Draft, Problem
from checkpoint.folding import fold
from surgery.comparison import Difference
from surgery.fixup import fixup
from surgery.gptq.handover import Handover

Modules = Mapping[str, Mapping[str, Any]]
"""What was recorded of each module, by name (`recording.Record` as JSON)."""


def result_problems(build: Handover, modules: Modules, *, fallbacks_allowed: bool) -> Iterator[Problem]:
    """Modules that were not calibrated, by what was recorded of them."""
    unseen = [name for name, record in modules.items() if record["dead"] == record["columns"]]
    broken = [name for name, record in modules.items() if not isfinite(record["loss"])]
    absent = [module.name for module in build.modules if module.name not in modules]
    fallen = [] if fallbacks_allowed else fallbacks(modules)
    yield from _told(
        "uncalibrated", unseen, "saw no activation, so that GPTQ made all its weights zero",
        "Set gptq.calibrate_all_experts, or calibrate with more text",
    )  # fmt: skip
    yield from _told("not-finite", broken, "its loss is NaN or Inf", "Look for NaN and Inf in the base: ckpt verify")
    yield from _told("not-quantized", absent, "was not quantized by GPTQ", "The log may say why")
    yield from _told(
        "rtn-fallback", fallen, "was rounded to nearest: its Hessian could not be inverted",
        "Calibrate with more text, raise gptq.dampening, or accept it: --allow-rtn-fallbacks",
    )  # fmt: skip


def export_problems(build: Handover, export: Checkpoint) -> Iterator[Problem]:
    """Where the export is not packed as it should be: other modules, another width or group size."""
    expected = {
        name: (source.dtype, source.shape)
        for name, source in build.layout.tensors.items()
        if isinstance(source, Computed)
    }
    stored = {name: (ref.dtype, ref.shape) for name, ref in export.tensors.items() if name.endswith(_PACKED)}
    for folded in fold((name, _state(expected.get(name), stored.get(name))) for name in {**expected, **stored}):
        if folded.state:
            found, wanted = folded.state
            yield Problem("export-differs", found, str(export.root), folded.pattern, wanted)


def mended(build: Handover, export: Draft, differences: Sequence[Difference]) -> Draft:
    """The export with all that it lacks, in one draft: MTP head, norms and state, ignore list, side files, head."""
    head = build.recipe.head
    draft = fixup(
        export,
        build.base,
        differences,
        head=head.scheme if head else None,
        maths=head.maths if head else "fp32",
    )
    return draft.refusing(export_problems(build, export.origin))


def fallbacks(modules: Modules) -> list[str]:
    """Modules that llm-compressor rounded to nearest because it could not invert their Hessians."""
    return [name for name, record in modules.items() if record["fallback"]]


_PACKED = (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")

_Stored = tuple[str, tuple[int, ...]]


def _state(expected: _Stored | None, stored: _Stored | None) -> tuple[str, str] | None:
    """(found, expected) in words where they differ."""
    if expected == stored:
        return None
    return _words(stored), _words(expected)


def _words(state: _Stored | None) -> str:
    return f"{state[0]} {list(state[1])}" if state else "no such tensor"


def _told(code: str, names: Iterable[str], found: str, remedy: str) -> Iterator[Problem]:
    for folded in fold((name, 0) for name in names):
        yield Problem(code, found, None, folded.pattern, remedy=remedy)
