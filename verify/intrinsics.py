"""What the compiled kernels need of LLVM that numba has no words for. Importing this needs numba."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def as_float(context: Any, bits: Any) -> Any:
    from llvmlite import ir

    return types.float32(types.uint32), lambda _, builder, __, values: builder.bitcast(values[0], ir.FloatType())


@intrinsic
def as_bits(context: Any, value: Any) -> Any:
    from llvmlite import ir

    return types.uint32(types.float32), lambda _, builder, __, values: builder.bitcast(values[0], ir.IntType(32))


@intrinsic
def width_of(context: Any, codes: Any) -> Any:
    """Bits of a code as a constant: half of those of a pair."""
    width = codes.dtype.bitwidth // 2
    return types.uint32(codes), lambda target, _, __, ___: target.get_constant(types.uint32, width)


@intrinsic
def use_wide_vectors(context: Any) -> Any:
    """Let the function that calls this have vectors of 512 bits, if the CPU does; LLVM keeps to 256 unless told.

    llvmlite's own `add` knows no attribute with a value; where its attributes are no set any more, this does nothing.
    """

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        attributes = builder.function.attributes
        if isinstance(attributes, set):
            set.add(attributes, '"prefer-vector-width"="512"')
        return target.get_dummy_value()

    return types.void(), generate
