"""What an exporter may do to a dense tensor without meaning to: casts, and rounding on the way through another form.

Arithmetic on numpy arrays of 32-bit floats; BF16, which numpy lacks, is the upper half of such a float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

EXPLAINABLE = frozenset({"BF16", "F16", "F32"})


def explanations(base_dtype: str, dtype: str) -> dict[str, Callable[[Any], Any]]:
    """Ways by which values of `base_dtype` may have become values of `dtype`: label -> float32 to float32.

    An offset norm stores w and multiplies by 1 + w; llm-compressor converts it there and back while calibrating
    (`norm_calibration_context`), so the stored value becomes T(T(1 + w) - 1).
    """
    ways: dict[str, Callable[[Any], Any]] = {}
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


def explain(base: bytes, base_dtype: str, other: bytes, dtype: str, alive: set[str]) -> Iterator[str]:
    """Of the ways named in `alive`, those that turn the values of `base` into exactly those of `other`."""
    import numpy as np

    before, after = floats(base, base_dtype), floats(other, dtype)
    for label, way in explanations(base_dtype, dtype).items():
        if label in alive and np.array_equal(way(before), after, equal_nan=True):
            yield label


def largest_difference(base: bytes, base_dtype: str, other: bytes, dtype: str) -> float:
    """max |other - base|, NaN where either is NaN."""
    import numpy as np

    difference = np.abs(floats(base, base_dtype) - floats(other, dtype))
    return float(difference.max(initial=0.0))


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
