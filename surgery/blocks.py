"""A block of rows from bytes to bytes: by the fused kernel where it can, else by the torch reference. Same bits."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from checkpoint.files import scratch
from surgery.packing import pack_columns, pack_rows
from surgery.rtn import NotFinite, quantize_rows
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import numpy as np
    import torch


class PackedRows(NamedTuple):
    """The bytes of `weight_packed`, `weight_scale` and, for an asymmetric scheme, `weight_zero_point`."""

    packed: memoryview
    scale: memoryview
    zero_point: memoryview | None


class Packer(Protocol):
    """What packs blocks of rows: the threads of this machine's processor, or a GPU."""

    @property
    def block_elements(self) -> int:
        """Elements that a block aims at."""

    @property
    def element_memory(self) -> int:
        """Bytes of buffers for each element of a block."""

    @property
    def note(self) -> str:
        """What a user should know of how it packs, if anything."""

    def buffer(self, nbytes: int) -> memoryview:
        """Memory of the calling thread for the rows to be read into; the next call hands it out again."""

    def pack(self, data: memoryview, columns: int, dtype: str, scheme: Scheme, maths: Maths) -> PackedRows:
        """Quantize and pack rows, the bits those of `reference`. The result is good until the thread's next call.

        Raises NotFinite.
        """


class Cpu:
    """Packs on the calling thread."""

    block_elements = 1 << 20
    """Their 32-bit copy stays in a core's cache."""

    element_memory = 2 + 8 + 2
    """The bytes read, two 32-bit copies, and codes twice."""

    note = ""

    def buffer(self, nbytes: int) -> memoryview:
        return scratch(nbytes)

    def pack(self, data: memoryview, columns: int, dtype: str, scheme: Scheme, maths: Maths) -> PackedRows:
        return pack_block(data, columns, dtype, scheme, maths)


CPU = Cpu()


def pack_block(data: memoryview, columns: int, dtype: str, scheme: Scheme, maths: Maths) -> PackedRows:
    """Quantize and pack rows of `columns` elements of `dtype` (BF16, F16, F32) that lie in `data` one after another.

    Raises NotFinite.
    """
    if dtype == "BF16" and columns * scheme.bits % 32 == 0 and kernels() is not None:
        return fused(data, columns, scheme, maths)
    return reference(data, columns, dtype, scheme, maths)


@lru_cache(maxsize=1)
def kernels() -> ModuleType | None:
    """The compiled kernels; None without numba, or where it finds no folder to keep them in."""
    try:
        from surgery import kernels as compiled
    except (ImportError, RuntimeError):
        return None
    return compiled


def fused(data: memoryview, columns: int, scheme: Scheme, maths: Maths) -> PackedRows:
    """BF16 rows by one pass of the fused kernel. Rows must fill whole words. Raises NotFinite."""
    import numpy as np

    from surgery import kernels

    size = scheme.group_size or columns
    x = np.frombuffer(data, np.uint16).reshape(-1, columns)
    packed = np.empty((len(x), columns * scheme.bits // 8), np.uint8)
    scale = np.empty((len(x), columns // size), np.uint16)
    zero_point = None if scheme.symmetric else np.empty(scale.shape, np.uint8)
    eager = maths == "eager"
    if zero_point is None:
        finite = kernels.pack_symmetric(x, size, scheme.bits, eager, packed, scale)
    else:
        finite = kernels.pack_asymmetric(x, size, scheme.bits, eager, packed, scale, zero_point)
    if not finite:
        raise NotFinite
    words = None if zero_point is None else _flat(kernels.pack_columns(zero_point, scheme.bits))
    return PackedRows(_flat(packed), _flat(scale), words)


def reference(data: memoryview, columns: int, dtype: str, scheme: Scheme, maths: Maths) -> PackedRows:
    """Rows of any dtype by torch. Raises NotFinite."""
    import torch

    torch.set_num_threads(1)  # blocks run side by side already; threads inside one would wait for each other
    kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[dtype]
    weight = torch.frombuffer(data, dtype=kind).view(-1, columns)
    codes, scale, zero_point = quantize_rows(weight, scheme, maths)
    words = None if zero_point is None else _bytes(pack_columns(zero_point, scheme.bits))
    return PackedRows(_bytes(pack_rows(codes, scheme.bits)), _bytes(scale), words)


def _flat(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view("u1").data


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    # flat first: a [W, 1] transpose passes for contiguous with a last stride that no view as bytes can have
    return tensor.reshape(-1).view(torch.uint8).numpy().data
