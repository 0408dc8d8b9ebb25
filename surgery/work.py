"""RTN of one matrix as work that a plan can hold: blocks of rows, each independent of the others."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from checkpoint import Problem, Refused, TensorRef
from checkpoint.draft import Block, Computed
from surgery.blocks import CPU, Packer
from surgery.packing import packed_width
from surgery.rtn import NotFinite
from surgery.scheme import Maths, Scheme

ROW_MULTIPLE = 32
"""Rows of a block are a multiple of this, so that packed zero points of two blocks never share a word."""


@dataclass(frozen=True)
class PackRows:
    """Pack the matrix `source` [R, C]; `label` is what to call it in messages."""

    source: TensorRef
    scheme: Scheme
    maths: Maths
    label: str
    packer: Packer = CPU

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

    @property
    def terms(self) -> dict[str, str]:
        """How it is packed, for the manifest."""
        return {"scheme": str(self.scheme), "maths": self.maths}

    @property
    def identity(self) -> str:
        return f"{self.source.dtype} {self.source.shape} {self.scheme} {self.maths}"

    @cached_property
    def known(self) -> dict[str, bytes]:
        return {"weight_shape": struct.pack("<2q", *self.source.shape)}

    @cached_property
    def _block_rows(self) -> int:
        rows = self.packer.block_elements // max(1, self.source.shape[1])
        return max(ROW_MULTIPLE, rows // ROW_MULTIPLE * ROW_MULTIPLE)

    @property
    def blocks(self) -> int:
        return max(1, -(-self.source.shape[0] // self._block_rows))

    @property
    def block_memory(self) -> int:
        return min(self._block_rows, self.source.shape[0]) * self.source.shape[1] * self.packer.element_memory

    def span(self, block: int) -> tuple[int, int]:
        row_bytes = self.source.nbytes // max(1, self.source.shape[0])
        first, count = self._rows(block)
        return first * row_bytes, count * row_bytes

    def buffer(self, nbytes: int) -> memoryview:
        return self.packer.buffer(nbytes)

    def run(self, block: int, data: memoryview) -> Iterator[Block]:
        first, count = self._rows(block)
        try:
            rows = self.packer.pack(data, self.source.shape[1], self.source.dtype, self.scheme, self.maths)
        except NotFinite as error:
            raise Refused(self._not_finite) from error
        yield "weight_packed", first * (rows.packed.nbytes // count), rows.packed
        yield "weight_scale", first * (rows.scale.nbytes // count), rows.scale
        if rows.zero_point is not None:
            row_of_words = self.outputs["weight_zero_point"][1][1] * 4
            yield "weight_zero_point", packed_width(first, self.scheme.bits) * row_of_words, rows.zero_point

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
