"""The packed values themselves, where there is no base to recompute them from: are they spread as weights are?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from verify.blocks import each, read_rows, row_blocks, sampled, total_bytes
from verify.case import Case
from verify.gathering import gather
from verify.packed import Packed
from verify.registry import Hit, rule
from verify.rules.triplets import schemed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

BITS = 4
MOST_AT_ENDS = 0.15
"""Share of weights at -8 and 7 that is suspicious where -1 and 0 have less than half of it.

Rounding leaves one or two of each group there and a tenth of even weights; bell-shaped weights in two's complement,
read with the offset, leave a fifth and more, and next to none at -1 and 0.
"""

FARTHEST_CENTRE = 2.0
"""Steps that the mean of a symmetric module's weights may be off zero; another offset moves it by 8."""

SMALLEST = 512
"""Weights below which shares mean little."""


@rule(
    "N07",
    "symmetric 4-bit values centre on zero",
    severity="warning",
    cost="content",
    evidence="compressed-tensors pack_to_int32 stores value + 8; others store two's complement",
    remedy="Pack the module again from the base: ckpt quantize BASE",
)
def offsets(case: Case) -> Iterable[Hit]:
    """Where there is a base, N04 recomputes. What is constant is the matter of N03."""
    import numpy as np

    if case.base is not None:
        return
    modules = {module.name: module for module, _ in schemed(case) if _is_counted(module)}
    chosen = [modules[name] for name in sampled(case, list(modules))]
    nbytes = total_bytes(module.parts["weight_packed"] for module in chosen)
    counted = list(each(case, "values", chosen, lambda module: _histogram(case, module), nbytes))
    faults = ((m.name, found) for m, counts in zip(chosen, counted, strict=True) if (found := _fault(counts)))
    yield from gather(faults, consequence="every weight is off by half of the range")
    if counted:
        total = np.sum(counted, axis=0)
        low, high = (100 * int(total[end]) / max(int(total.sum()), 1) for end in (0, -1))
        case.notes.fact(f"4-bit values of {len(chosen):,} modules: {low:.1f} % at -8, {high:.1f} % at 7")


def _is_counted(module: Packed) -> bool:
    scheme, size, packed = module.scheme, module.size, module.parts.get("weight_packed")
    if scheme is None or size is None or packed is None or packed.dtype != "I32":
        return False
    fits = packed.shape == (size[0], size[1] * BITS // 32) and size[1] * BITS % 32 == 0
    return scheme.num_bits == BITS and scheme.symmetric and fits


def _histogram(case: Case, module: Packed) -> Counts:
    """How many weights have each of the 16 stored values."""
    import numpy as np

    counts = np.zeros(1 << BITS, np.int64)
    for start, end in row_blocks(case, *(module.size or (0, 0))):
        raw = read_rows(case, module.parts["weight_packed"], start, end).reshape(-1)
        pairs = np.bincount(raw, minlength=256).reshape(16, 16)
        counts += pairs.sum(axis=0) + pairs.sum(axis=1)
    return counts


def _fault(counts: Counts) -> str | None:
    total = int(counts.sum())
    if total < SMALLEST or int(counts.max()) == total:
        return None
    ends, middle = int(counts[0] + counts[-1]), int(counts[7] + counts[8])
    if ends > MOST_AT_ENDS * total and ends > 2 * middle:
        return "most values lie at both ends of the range, as two's complement does"
    centre = sum(value * int(count) for value, count in enumerate(counts)) / total - 8
    return "values do not centre on zero, as another offset does" if abs(centre) > FARTHEST_CENTRE else None
