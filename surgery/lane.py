"""What one thread works with on a GPU: a stream, and buffers on both sides that grow as they have to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from surgery.passage import Kind, Passage


class Buffers(NamedTuple):
    """Bytes of a block on its way: here, on the GPU, what comes of it there, and that again here. Pinned where here."""

    staged: torch.Tensor
    source: torch.Tensor
    result: torch.Tensor
    returned: torch.Tensor


class Lane:
    """For one thread. Each of its buffers is one piece of memory, so that only one block can be on its way.

    `passages` through it are kept by the kind of their blocks, until a buffer that they use is replaced.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.passages: dict[Kind, Passage] = {}
        self._device = device
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        self._buffers = Buffers(_pinned(0), empty, empty, _pinned(0))

    def buffer(self, nbytes: int) -> memoryview:
        """Pinned memory to read into, the same each time."""
        if nbytes > self._buffers.staged.numel():
            self._replace(staged=_pinned(nbytes))
        return self._buffers.staged.numpy().data[:nbytes]

    def stage(self, data: memoryview) -> None:
        """Have `data` lie at the start of the pinned memory."""
        import numpy as np

        array = np.frombuffer(data, np.uint8)
        if array.__array_interface__["data"][0] != self._buffers.staged.data_ptr():
            self.buffer(data.nbytes)[:] = array.data

    def reserve(self, nbytes: int, returned: int) -> Buffers:
        """Buffers for a block of `nbytes` of which `returned` come back; `result` is 0 when it is new.

        To be called with the lane's stream as the current one.
        """
        import torch

        self.buffer(nbytes)
        if nbytes > self._buffers.source.numel():
            self._replace(source=torch.empty(nbytes, dtype=torch.uint8, device=self._device))
        if returned > self._buffers.result.numel():
            result = torch.zeros(returned, dtype=torch.uint8, device=self._device)
            self._replace(result=result, returned=_pinned(returned))
        staged, source, result, back = self._buffers
        return Buffers(staged[:nbytes], source[:nbytes], result[:returned], back[:returned])

    def _replace(self, **buffers: torch.Tensor) -> None:
        self.passages.clear()
        self._buffers = self._buffers._replace(**buffers)


def _pinned(nbytes: int) -> torch.Tensor:
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
