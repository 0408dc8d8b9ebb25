"""What an exporter may do to a dense tensor without meaning to: casts, and rounding on the way through another form.

Arithmetic on numpy arrays of 32-bit floats; BF16, which numpy lacks, is the upper half of such a float.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

Way = Callable[[Any], Any]
"""float32 to float32."""

EXPLAINABLE = frozenset({"BF16", "F16", "F32"})


def explanations(base_dtype: str, dtype: str) -> dict[str, Way]:
    """Ways by which values of `base_dtype` may have become values of `dtype`, by label, the likeliest first.

    An offset norm stores w and multiplies by 1 + w; llm-compressor converts it there and back while calibrating
    (`norm_calibration_context`), so the stored value becomes T(T(1 + w) - 1).
    """
    ways: dict[str, Way] = {}
    if base_dtype != dtype:
        ways[f"cast from {base_dtype} to {dtype}"] = partial(_cast, dtypes=(dtype,))
    for through in ("BF16", "F16", "F32"):
        ways[f"re-rounded as an offset norm in {through}"] = partial(_offset, through=through, dtype=dtype)
        if through not in (base_dtype, dtype):
            ways[f"rounded through {through}"] = partial(_cast, dtypes=(through, dtype))
    return ways


def _cast(values: Floats, *, dtypes: tuple[str, ...]) -> Floats:
    return reduce(rounded, dtypes, values)


def _offset(values: Floats, *, through: str, dtype: str) -> Floats:
    shifted = rounded(rounded(values, through) + 1, through)
    return rounded(rounded(shifted - 1, through), dtype)


def turns_into(way: Way, before: Floats, after: Floats) -> bool:
    """Does `way` turn the values `before` into exactly the values `after`?"""
    import numpy as np

    return bool(np.array_equal(way(before), after, equal_nan=True))


def largest_difference(before: Floats, after: Floats) -> float:
    """max |after - before|; infinite where one is NaN or Inf and the other is not the same."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        difference = np.abs(after - before)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return float(np.where(same, 0.0, np.nan_to_num(difference, nan=np.inf, posinf=np.inf)).max(initial=0.0))


def floats(raw: bytes, dtype: str) -> Floats:
    """The values of `raw` as float32."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def rounded(values: Floats, dtype: str) -> Floats:
    """`values` rounded to `dtype`, to nearest with ties to even."""
    import numpy as np

    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), values, (nearest & np.uint32(0xFFFF0000)).view(np.float32))
