"""The kernels alone, on what is in the GPU's memory already: bytes read and written a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import Row, at_least
from benchmarks.gpu.weights import gaussian
from surgery import triton_packing
from surgery.packing import pack_columns, pack_rows
from surgery.rtn import quantize_rows
from surgery.scheme import Maths, Scheme

if TYPE_CHECKING:
    import torch

TARGET = 1.5
"""TB/s of the main kernel."""

MAIN = Scheme(4, 32)
TILES, PER_WARP = (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048)
SCHEMES: tuple[tuple[Scheme, Maths], ...] = (
    (MAIN, "fp32"),
    (MAIN, "eager"),
    (Scheme(4, 32, symmetric=False), "fp32"),
    (Scheme(4, 32, symmetric=False), "eager"),
    (Scheme(4, 128), "fp32"),
    (Scheme(8, 128), "fp32"),
    (Scheme(8, 128), "eager"),
    (Scheme(4, None), "fp32"),
    (Scheme(8, None, symmetric=False), "fp32"),
    (Scheme(4, 48), "fp32"),
)


def measure(work: Path, *, quick: bool) -> Iterator[Row]:
    """A copy as the ceiling, a sweep of the tile for the main kernel, then every kind of kernel, and torch beside."""
    import torch

    rows = 1 << (14 if quick else 18)
    weight = gaussian(rows, 2048, torch.bfloat16)
    yield Row("copy within the GPU's memory", _copy_speed(weight), "TB/s")
    yield from _sweep(weight)
    for scheme, maths in SCHEMES:
        matrix = gaussian(rows, 2064 if scheme.group_size == 48 else 2048, torch.bfloat16)
        speed = _speed(matrix, scheme, maths)
        name = f"kernel, BF16 to {scheme}, {maths}"
        yield at_least(name, speed, "TB/s", TARGET) if scheme == MAIN else Row(name, speed, "TB/s")
    for dtype in (torch.float16, torch.float32):
        speed = _speed(gaussian(rows // 2, 2048, dtype), MAIN, "fp32")
        yield Row(f"kernel, {str(dtype)[6:]} to {MAIN}, fp32", speed, "TB/s")
    part = weight[: rows // 8]
    yield Row(f"torch, BF16 to {MAIN}, fp32", _torch_speed(part), "TB/s", note="what runs without Triton")
    yield from _inverse(weight)


def _copy_speed(weight: torch.Tensor) -> float:
    import torch

    target = torch.empty_like(weight)
    return 2 * weight.nbytes / _seconds(lambda: target.copy_(weight)) / 1e12


def _sweep(weight: torch.Tensor) -> Iterator[Row]:
    """The main kernel with every tile; the defaults stay as they are."""
    defaults = triton_packing.TILE, triton_packing.WARP
    for tile, warp in product(TILES, PER_WARP):
        if tile >= warp:
            triton_packing.TILE, triton_packing.WARP = tile, warp
            name = f"main kernel, tile of {tile}, {tile // warp} warps"
            yield Row(name, _speed(weight, MAIN, "fp32"), "TB/s", note="default" * ((tile, warp) == defaults))
    triton_packing.TILE, triton_packing.WARP = defaults


def _speed(weight: torch.Tensor, scheme: Scheme, maths: Maths) -> float:
    """TB/s, read and written."""
    import torch

    groups = weight.numel() // (scheme.group_size or weight.shape[1])
    packed = torch.empty(weight.numel() * scheme.bits // 32, dtype=torch.int32, device="cuda")
    scale = torch.empty(groups, dtype=weight.dtype, device="cuda")
    zeros = None if scheme.symmetric else torch.empty(groups, dtype=torch.uint8, device="cuda")
    refused = torch.zeros(1, dtype=torch.int32, device="cuda")
    moved = weight.nbytes + packed.nbytes + scale.nbytes + (0 if zeros is None else zeros.nbytes)
    taken = _seconds(lambda: triton_packing.pack(weight, scheme, maths, packed, scale, zeros, refused))
    return moved / taken / 1e12


def _torch_speed(weight: torch.Tensor) -> float:
    def pack() -> None:
        codes, _, zeros = quantize_rows(weight, MAIN, "fp32")
        pack_rows(codes, MAIN.bits)
        if zeros is not None:
            pack_columns(zeros, MAIN.bits)

    return (weight.nbytes + weight.numel() // 2 + weight.numel() // 16) / _seconds(pack) / 1e12


def _inverse(weight: torch.Tensor) -> Iterator[Row]:
    """The kernels that judge: values from codes, and how far they are from the weights."""
    import torch

    from verify.triton_kernels import dequantize, squared_error

    groups = weight.shape[1] // 32
    packed = torch.empty((len(weight), weight.shape[1] // 8), dtype=torch.int32, device="cuda")
    scale = torch.empty((len(weight), groups), dtype=weight.dtype, device="cuda")
    refused = torch.zeros(1, dtype=torch.int32, device="cuda")
    triton_packing.pack(weight, MAIN, "fp32", packed.view(-1), scale.view(-1), None, refused)
    moved = weight.nbytes + packed.nbytes + scale.nbytes
    taken = _seconds(lambda: dequantize(packed, scale, None, 4, torch.bfloat16))
    yield Row(f"dequantize, {MAIN} to BF16", moved / taken / 1e12, "TB/s")
    taken = _seconds(lambda: squared_error(weight, packed, scale, None, 4))
    yield Row(f"squared error, {MAIN} against BF16", moved / taken / 1e12, "TB/s")
    error, norm = squared_error(weight, packed, scale, None, 4)
    yield Row(f"relative error of {MAIN} on Gaussian weights", (error / norm) ** 0.5)


def _seconds(launch: Callable[[], object], repeats: int = 15) -> float:
    """Median time on the GPU, by its own clock, after two launches that are not counted."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]  # type: ignore[no-untyped-call]
    launch()
    launch()
    for begin, end in zip(events[::2], events[1::2], strict=True):
        begin.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    taken: float = median(begin.elapsed_time(end) for begin, end in zip(events[::2], events[1::2], strict=True))
    return taken / 1e3
