"""The way of blocks of one kind through a GPU: over, packed there, and back.

It is walked step by step once, recorded when it comes again, and replayed from then on. A replay is one call; the steps
are dozens, after each of which a thread has to wait for Python's lock.
"""

from __future__ import annotations

from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from surgery.blocks import PackedRows
from surgery.lane import Lane
from surgery.packing import pack_columns, pack_rows, packed_width
from surgery.rtn import NotFinite, quantize_rows
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import torch

HEADER = 16
"""Bytes before what comes back, the first of them a flag that stays 0 while all is well."""

ALIGNED = 16
"""Where parts of a result start: what the widest store of a thread takes."""

_alone = Lock()
"""Held while a kernel may be built, which one thread does for all, and while steps are recorded."""


class Kind(NamedTuple):
    """What makes blocks alike."""

    nbytes: int
    columns: int
    dtype: str
    scheme: Scheme
    maths: Maths


class Passage:
    """The passage of `kind` on a lane, by `kernels` where rows fit them, else by the reference on the GPU."""

    def __init__(self, lane: Lane, kind: Kind, kernels: ModuleType | None) -> None:
        import torch

        dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[kind.dtype]
        rows = kind.nbytes // (kind.columns * dtype.itemsize)
        places = _places(rows, dtype.itemsize, kind)
        self._stream, self._scheme, self._maths = lane.stream, kind.scheme, kind.maths
        self._buffers = buffers = lane.reserve(kind.nbytes, places[-1].stop)
        self._weight = buffers.source.view(dtype).view(rows, kind.columns)
        self._packed, self._scale, self._zero_point = (buffers.result[place] for place in places)
        returned = buffers.returned.numpy().data
        packed, scale, zero_point = (returned[place] for place in places)
        self._flag = returned[:1]
        self._found = PackedRows(packed, scale, None if kind.scheme.symmetric else zero_point)
        self._zeros = None
        if not kind.scheme.symmetric:
            groups = kind.columns // (kind.scheme.group_size or kind.columns)
            self._zeros = torch.empty((rows, groups), dtype=torch.uint8, device=self._weight.device)
        self._kernels = kernels if kernels is not None and kernels.fits(kind.columns, kind.scheme) else None
        self._walked = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> PackedRows:
        """Pack what is staged; the result is good until the lane's next block. Raises NotFinite."""
        import torch

        with torch.cuda.stream(self._stream):
            if self._graph is not None:
                self._graph.replay()
            elif self._walked and self._kernels is not None:
                self._graph = self._recorded()
                self._graph.replay()
            else:
                self._walk()
            self._stream.synchronize()
            if self._flag[0]:
                self._buffers.result[:HEADER].zero_()
                raise NotFinite
        return self._found

    def _recorded(self) -> torch.cuda.CUDAGraph:
        import torch

        graph = torch.cuda.CUDAGraph()
        with _alone:
            graph.capture_begin(capture_error_mode="thread_local")  # others may allocate meanwhile; the steps do not
            try:
                self._steps()
            finally:
                graph.capture_end()
        return graph

    def _walk(self) -> None:
        if self._walked:
            self._steps()
        else:
            with _alone:
                self._steps()
        self._walked = True

    def _steps(self) -> None:
        self._buffers.source.copy_(self._buffers.staged, non_blocking=True)
        if self._kernels is None:
            self._by_reference()
        else:
            self._by_kernels(self._kernels)
        self._buffers.returned.copy_(self._buffers.result, non_blocking=True)

    def _by_kernels(self, kernels: ModuleType) -> None:
        import torch

        packed, scale = self._packed.view(torch.int32), self._scale.view(self._weight.dtype)
        refused = self._buffers.result[:4].view(torch.int32)
        kernels.pack(self._weight, self._scheme, self._maths, packed, scale, self._zeros, refused)
        if self._zeros is not None:
            kernels.pack_zero_points(self._zeros, self._scheme.bits, self._zero_point.view(torch.int32))

    def _by_reference(self) -> None:
        codes, scale, zeros = quantize_rows(self._weight, self._scheme, self._maths)
        for part, found in (
            (self._packed, pack_rows(codes, self._scheme.bits)),
            (self._scale, scale),
            (self._zero_point, None if zeros is None else pack_columns(zeros, self._scheme.bits)),
        ):
            if found is not None:
                part.view(found.dtype).copy_(found.reshape(-1))


def _places(rows: int, itemsize: int, kind: Kind) -> tuple[slice, ...]:
    """Where packed words, scales and packed zero points lie in a result."""
    columns, scheme = kind.columns, kind.scheme
    groups = columns // (scheme.group_size or columns)
    words = 0 if scheme.symmetric else packed_width(rows, scheme.bits) * groups
    places, start = [], HEADER
    for nbytes in (rows * packed_width(columns, scheme.bits) * 4, rows * groups * itemsize, words * 4):
        places.append(slice(start, start + nbytes))
        start += -(-nbytes // ALIGNED) * ALIGNED
    return tuple(places)
