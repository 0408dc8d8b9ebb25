"""RTN of one matrix as work that a plan can hold: blocks of rows, each independent of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from checkpoint import Problem, Refused, TensorRef
from checkpoint.draft import Block, Computed
from surgery.packing import pack_columns, pack_rows, packed_width
from surgery.rtn import NotFinite, quantize_rows
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import torch

BLOCK_ELEMENTS = 1 << 20
"""Elements a block aims at: its 32-bit copy stays in a core's cache."""

ROW_MULTIPLE = 32
"""Rows of a block are a multiple of this, so that packed zero points of two blocks never share a word."""


@dataclass(frozen=True)
class PackRows:
    """Pack the matrix `source` [R, C]; `label` is what to call it in messages."""

    source: TensorRef
    scheme: Scheme
    maths: Maths
    label: str

    @cached_property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, columns = self.source.shape
        groups = columns // (self.scheme.group_size or columns)
        outputs: dict[str, tuple[str, tuple[int, ...]]] = {
            "weight_packed": ("I32", (rows, packed_width(columns, self.scheme.bits))),
            "weight_scale": (self.source.dtype, (rows, groups)),
            "weight_shape": ("I64", (2,)),
        }
        if not self.scheme.symmetric:
            outputs["weight_zero_point"] = ("I32", (packed_width(rows, self.scheme.bits), groups))
        return outputs

    @cached_property
    def _block_rows(self) -> int:
        rows = BLOCK_ELEMENTS // max(1, self.source.shape[1])
        return max(ROW_MULTIPLE, rows // ROW_MULTIPLE * ROW_MULTIPLE)

    @property
    def blocks(self) -> int:
        return max(1, -(-self.source.shape[0] // self._block_rows))

    @property
    def block_memory(self) -> int:
        # the bytes read, two 32-bit copies, and codes twice
        return min(self._block_rows, self.source.shape[0]) * self.source.shape[1] * (2 + 8 + 2)

    def span(self, block: int) -> tuple[int, int]:
        row_bytes = self.source.nbytes // max(1, self.source.shape[0])
        first, count = self._rows(block)
        return first * row_bytes, count * row_bytes

    def run(self, block: int, data: memoryview) -> Iterator[Block]:
        import torch

        torch.set_num_threads(1)  # blocks run side by side already; threads inside one would wait for each other
        first, count = self._rows(block)
        dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[self.source.dtype]
        weight = torch.frombuffer(data, dtype=dtype).view(count, self.source.shape[1])
        try:
            codes, scale, zero_point = quantize_rows(weight, self.scheme, self.maths)
        except NotFinite as error:
            raise Refused(self._not_finite) from error
        packed = pack_rows(codes, self.scheme.bits)
        yield "weight_packed", first * packed.shape[1], _bytes(packed)
        yield "weight_scale", first * scale.shape[1] * scale.element_size(), _bytes(scale)
        if zero_point is not None:
            words = pack_columns(zero_point, self.scheme.bits)
            yield "weight_zero_point", packed_width(first, self.scheme.bits) * words.shape[1] * 4, _bytes(words)
        if block == 0:
            yield "weight_shape", 0, _bytes(torch.tensor(self.source.shape, dtype=torch.int64))

    @property
    def _not_finite(self) -> Problem:
        found = f"holds NaN or Inf, or values too far apart for {self.source.dtype}"
        remedy = "Get the tensor again from where it came from, or keep the module dense with --ignore"
        return Problem("not-finite", found, self.source.path.name, self.label, "finite weights", remedy)

    def computed(self) -> dict[str, Computed]:
        """The tensors that replace the module's weight, by suffix."""
        return {suffix: Computed(self, suffix) for suffix in self.outputs}

    def _rows(self, block: int) -> tuple[int, int]:
        first = block * self._block_rows
        return first, min(self._block_rows, self.source.shape[0] - first)


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    # flat first: a [W, 1] transpose passes for contiguous with a last stride that no view as bytes can have
    return tensor.reshape(-1).view(torch.uint8).numpy().data
