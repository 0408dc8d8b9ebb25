"""Packing on a CUDA GPU: what is read into pinned memory goes over, is packed there in one pass, and comes back.

Every thread has a stream and buffers of its own, so that one block is read or written while another travels and a third
is packed. Needs torch; with Triton, which comes with it, one kernel does all, and without it the reference runs there.
"""

from __future__ import annotations

from subprocess import CalledProcessError
from threading import local
from types import ModuleType
from typing import TYPE_CHECKING

from checkpoint.gpu import cuda_device
from surgery.blocks import PackedRows
from surgery.lane import Lane
from surgery.passage import Kind, Passage
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import torch


class Cuda:
    """Packs blocks of rows on one GPU; threads may share it.

    Raises MissingExtra without torch, Refused where torch sees no GPU `index` (None: the current one).
    """

    block_elements = 1 << 22
    """What travels in a fraction of a millisecond, beside which a launch and a wait cost little."""

    element_memory = 6
    """Pinned bytes: up to 4 for the element, the rest for what comes back."""

    def __init__(self, index: int | None = None) -> None:
        self._device = cuda_device(index)
        self._local = local()
        self.kernels = _kernels(self._device)

    def buffer(self, nbytes: int) -> memoryview:
        """Pinned memory of the calling thread, which its next call hands out again."""
        return self._lane.buffer(nbytes)

    def pack(self, data: memoryview, columns: int, dtype: str, scheme: Scheme, maths: Maths) -> PackedRows:
        """As `pack_block`, with the same bits; the result is good until the thread's next call.

        `data` had best lie in `buffer`. Raises NotFinite.
        """
        import torch

        lane = self._lane
        lane.stage(data)
        kind = Kind(data.nbytes, columns, dtype, scheme, maths)
        passage = lane.passages.get(kind)
        if passage is None:
            with torch.cuda.stream(lane.stream):
                passage = Passage(lane, kind, self.kernels)
            lane.passages[kind] = passage  # not before: it may have replaced buffers, which ends the others
        return passage.run()

    @property
    def note(self) -> str:
        """Without the Triton kernel, packing is some fifty times slower."""
        return (
            ""
            if self.kernels
            else f"{self._device}: Triton cannot run here, so torch packs, at a fraction of the speed"
        )

    @property
    def _lane(self) -> Lane:
        lane: Lane | None = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = Lane(self._device)
        return lane


def _kernels(device: torch.device) -> ModuleType | None:
    """The Triton kernels, where one runs: they need Triton, a GPU that it knows, and a C compiler for what calls it."""
    import torch

    try:
        from triton import TritonError

        from surgery import triton_packing
    except ImportError:
        return None
    weight = torch.zeros(1, 32, dtype=torch.bfloat16, device=device)
    words = torch.zeros(4 + 1, dtype=torch.int32, device=device)
    try:
        with torch.cuda.device(device):
            triton_packing.pack(weight, Scheme(4, 32), "fp32", words[:4], weight[0, :1], None, words[4:])
    except (TritonError, RuntimeError, CalledProcessError):
        return None
    return triton_packing
