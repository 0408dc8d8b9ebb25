"""Every dtype, scheme and maths: the bits from the GPU, by the kernel and by torch, are those of the CPU reference."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import Row
from benchmarks.gpu.weights import hard, raw
from surgery.blocks import PackedRows, reference
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    from surgery.cuda import Cuda

COLUMNS = 2304
"""Divides by every group size."""

SIZES = (8, 32, 48, 64, 96, 128, 256, 3, 12, None)
FEWER = (32, 48, 12, None)
MATHS: tuple[Maths, ...] = ("eager", "fp32")
PROCESSES = 8

Kind = tuple[str, int, int | None]
"""dtype, bits, and group size."""


def measure(work: Path, *, quick: bool) -> Iterator[Row]:
    """One row for the kernel and one for torch on the GPU."""
    kinds = [*product(("BF16",), (4, 8), FEWER if quick else SIZES), *product(("F16", "F32"), (4, 8), FEWER)]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found = list(pool.map(_differences, kinds))
    for way, name in enumerate(("the kernel, or torch where it does not fit", "torch")):
        count, wrong = sum(one[0] for one in found), [label for one in found for label in one[1][way]]
        told = "equal" if not wrong else f"{len(wrong)} differ: {', '.join(wrong[:8])}"
        yield Row(f"bits from the GPU by {name}: {count} matrices", told, "", "equal", not wrong)


def _differences(kind: Kind) -> tuple[int, tuple[list[str], list[str]]]:
    """How many matrices were packed, and which of them otherwise by the kernel, and by torch."""
    dtype, bits, size = kind
    wrong: tuple[list[str], list[str]] = ([], [])
    count = 0
    for seed, symmetric, maths in product(range(3), (True, False), MATHS):
        scheme, count = Scheme(bits, size, symmetric), count + 1
        data = raw(hard(dtype, COLUMNS, seed))
        expected = _bytes(reference(data, COLUMNS, dtype, scheme, maths))
        for way, packer in enumerate(_packers()):
            buffer = packer.buffer(data.nbytes)
            buffer[:] = data
            if _bytes(packer.pack(buffer, COLUMNS, dtype, scheme, maths)) != expected:
                wrong[way].append(f"{dtype} {scheme} {maths}")
    return count, wrong


@lru_cache(maxsize=1)
def _packers() -> tuple[Cuda, Cuda]:
    """One with kernels, one without. Raises RuntimeError where there are none."""
    from surgery.cuda import Cuda

    fused, plain = Cuda(), Cuda()
    if fused.kernels is None:
        raise RuntimeError("no kernel runs here")
    plain.kernels = None
    return fused, plain


def _bytes(rows: PackedRows) -> list[bytes]:
    return [b"" if part is None else part.tobytes() for part in rows]
