"""The compiled kernels of verify against its reference, which others prove against compressed-tensors.

The kernels compare distances with bounds; the reference rounds quotients. Where they agree on every weight there is,
and on blocks of every kind, neither is wrong by itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint import TensorRef
from verify import compiled, reference
from verify.arithmetic import (
    MODES,
    Grid,
    Mode,
    codes_of,
    pack_rows,
    scales_of,
    to_float32,
)
from verify.groups import Scheme
from verify.packed import Packed
from verify.recompute import Job, Outcome
from verify.rows import Piece

pytest.importorskip("numba")

from numba import njit

from verify import kernels

Array = np.ndarray[Any, Any]

FINITE = np.arange(1 << 16, dtype=np.uint16)
FINITE = FINITE[(FINITE & 0x7FFF) < 0x7F80]
"""The bits of every BF16 number."""

SCALES = [int(kernels.LEAST), 0x3C00, 0x3F80, 0x3F81, 0x3FAA, 0x3FFF, int(kernels.MOST)]
"""The ends of the range; eps; the mantissas 1, its neighbour, a mixed one and the largest."""

CODES = {4: range(16), 8: (0, 1, 63, 64, 127, 128, 129, 191, 192, 254, 255)}


@njit  # type: ignore[untyped-decorator]
def exact(weights: Array, codes: Array, scale: Array, zeros: Array | None, eager: int, found: Array) -> None:
    """Whether the code is right for each weight, by the kernel that looks at a row."""
    pairs = np.empty(kernels.PAIRS, np.uint32)
    for i in range(len(weights)):
        pairs[:] = np.uint32(weights[i]) | (np.uint32(weights[i]) << np.uint32(16))
        found[i] = kernels._is_exact(pairs, codes, scale, zeros, 0, eager)


TRIED = [
    *product((4, 8), (None,), SCALES),
    *product((4,), (-8, 3), SCALES[1:5]),
    *product((8,), (-128, 101), SCALES[1:5]),
]


@pytest.mark.parametrize("bits, zero, scale", TRIED)
def test_every_weight_has_its_code_and_no_other(bits: int, zero: int | None, scale: int) -> None:
    grid, values = Grid("BF16", bits, 1, zero is None), bf16(FINITE).reshape(-1, 1)
    scales = np.broadcast_to(bf16(np.array([scale], np.uint16)), values.shape)
    zeros = None if zero is None else np.full(values.shape, zero, np.float32)
    stored = None if zero is None else np.array([zero], np.int8)
    found = np.empty(len(FINITE), np.int64)
    for eager, mode in enumerate(MODES):
        with np.errstate(over="ignore"):
            right = codes_of(values, scales, zeros, grid, mode)[:, 0] + (1 << (bits - 1))
        for code in CODES[bits]:
            pair = np.full(kernels.PAIRS, code | code << bits, np.uint8 if bits == 4 else np.uint16)
            exact(FINITE, pair, np.array([scale], np.uint16), stored, eager, found)
            assert np.array_equal(found == 1, right == code), (mode, code)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_largest_weight_has_its_scale_and_no_other(bits: int) -> None:
    largest = FINITE[: 1 << 15][FINITE[: 1 << 15] < 0x7F80]
    scales = upper(scales_of(bf16(largest).reshape(-1, 1), Grid("BF16", bits, 1, True))[0]).reshape(-1)
    for other in (-2, -1, 0, 1, 2):
        tried = scales.astype(np.int64) + other
        inside = (tried > 0) & (tried < 0x7F80)
        right = [
            not kernels._wrong_scales(largest[i : i + 1], tried[i : i + 1].astype(np.uint16), bits)
            for i in np.flatnonzero(inside)[:: 1 if other == 0 else 7]
        ]
        assert set(right) == {other == 0}


@pytest.mark.parametrize("bits", [4, 8])
def test_every_reach_has_its_scale_and_zero_point_and_no_other(bits: int) -> None:
    generator = np.random.default_rng(bits)
    high = generator.integers(0, 0x7F00, 4000).astype(np.uint16)
    low = np.clip(high + generator.integers(-1500, 1500, 4000), 0, 0x7F00).astype(np.uint16)
    high[:200], low[200:400], high[400:500], low[500:600] = 0, 0, generator.integers(0, 9, 100), 1
    ends = np.stack([bf16(high), -bf16(low)], axis=1)
    with np.errstate(over="ignore"):
        found = scales_of(ends, Grid("BF16", bits, 2, False))
    assert found[1] is not None
    scale, zero = upper(found[0]).reshape(-1).astype(np.int64), found[1].reshape(-1).astype(np.int64)
    for more, moved in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
        tried, place = scale + more, zero + moved
        inside = (tried > 0) & (tried < 0x7F80) & (abs(place + 0.5) < 1 << (bits - 1))
        right = [
            not kernels._wrong_zeros(
                high[i : i + 1],
                low[i : i + 1],
                tried[i : i + 1].astype(np.uint16),
                place[i : i + 1].astype(np.int8),
                bits,
            )
            for i in np.flatnonzero(inside)
        ]
        assert set(right) == {(more, moved) == (0, 0)}


# Blocks of rows


class Module:
    """A matrix of BF16 bits, rightly packed in some maths; tests damage its arrays."""

    def __init__(self, bits: int, group: int, symmetric: bool, mode: Mode, weight: Array, height: int = 16) -> None:
        rows, columns = weight.shape
        grid = Grid("BF16", bits, group, symmetric)
        values = bf16(weight)
        with np.errstate(all="ignore"):
            scale, zeros = scales_of(values, grid)
            codes = codes_of(values, scale, zeros, grid, mode)
        self.weight, self.packed, self.scale = weight, pack_rows(codes, bits), upper(scale)
        self.zeros = None if zeros is None else pack_columns(zeros, bits)
        self.blocks = tuple((start, min(start + height, rows)) for start in range(0, rows, height))
        refs = {
            "weight_packed": TensorRef("m.weight_packed", "I32", (rows, columns * bits // 32), Path(), 0, 0),
            "weight_scale": TensorRef("m.weight_scale", "BF16", (rows, columns // group), Path(), 0, 0),
        }
        scheme = Scheme("group_0", bits, group, "group", symmetric)
        packed = Packed("m", refs, scheme, weight.shape, weight.shape, None)
        self.job = Job(packed, TensorRef("m.weight", "BF16", weight.shape, Path(), 0, 0), grid)

    @property
    def piece(self) -> Piece:
        flat = (
            np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in (self.weight, self.packed, self.scale)
        )
        weight, packed, scale = flat
        return Piece(self.blocks, weight, packed, scale, self.zeros)


def bf16(bits: Array) -> Array:
    return to_float32(np.ascontiguousarray(bits).reshape(-1).view(np.uint8), "BF16").reshape(bits.shape)


def upper(values: Array) -> Array:
    """BF16 numbers as their bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def pack_columns(zeros: Array, bits: int) -> Array:
    """Zero points [rows, groups] as words [words, groups, 4], packed along the rows."""
    groups = zeros.shape[1]
    return pack_rows(zeros.T.astype(np.int16), bits).reshape(groups, -1, 4).transpose(1, 0, 2)


def gaussian(rows: int = 40, columns: int = 384, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(0.02)
    return upper(values)


def awkward() -> Array:
    """Zeros of both signs, tiny weights, one sign, one outlier, ties, subnormals beside zeros: a row of each."""
    weight = gaussian()
    weight[0], weight[1, ::2], weight[17] = 0, 0x8000, 0x8000
    weight[2] = upper(bf16(weight[2]) * np.float32(1e-12))
    weight[3], weight[4], weight[5, 7] = weight[3] & 0x7FFF, weight[4] | 0x8000, 0x42C8
    weight[6] = upper(((np.arange(384) % 31 - 15) / 2).astype(np.float32))
    weight[7], weight[7, 5] = 0, 3
    weight[20:24] = weight[24:28]
    return weight


def extreme() -> Array:
    """Beyond what the kernels take on: subnormals, and the largest number there is."""
    weight = awkward()
    weight[9], weight[25, 100] = weight[9] & 0x807F, 0x7F7F
    return weight


def flip(module: Module) -> None:
    module.packed[21, 5] ^= 1


def flip_half_of_a_block(module: Module) -> None:
    module.packed[16:24, 3] ^= 0x10


def flip_most_of_a_block(module: Module) -> None:
    module.packed[0:9, 3] ^= 0x10


def calibrate(module: Module) -> None:
    generator = np.random.default_rng(3)
    module.packed ^= generator.integers(0, 2, module.packed.shape).astype(np.uint8)


def move_scale(module: Module) -> None:
    module.scale[33, 0] += 1


def zero_scale(module: Module) -> None:
    module.scale[18, 0] = 0


def negative_scale(module: Module) -> None:
    module.scale[3, 0] |= 0x8000


def infinite_scale(module: Module) -> None:
    module.scale[39, 0] = 0x7F80


def not_a_number(module: Module) -> None:
    module.weight[30, 9] = 0x7FC0


def infinite(module: Module) -> None:
    module.weight[30, 9] = 0xFF80


def shift_zero(module: Module) -> None:
    if module.zeros is not None:
        module.zeros[1, 0, 0] ^= 1


def nothing(module: Module) -> None:
    pass


DAMAGE = [nothing, flip, flip_half_of_a_block, flip_most_of_a_block, calibrate, move_scale, zero_scale, negative_scale,
          infinite_scale, not_a_number, infinite, shift_zero]  # fmt: skip
GRIDS = [(4, 32, True), (8, 128, True), (4, 384, True), (4, 96, True), (8, 64, False), (4, 32, False), (4, 384, False)]


EAGER: frozenset[Mode] = frozenset({"eager"})
FP32: frozenset[Mode] = frozenset({"fp32"})
NONE: frozenset[Mode] = frozenset()
TRIED_MODES: tuple[frozenset[Mode], ...] = (frozenset(MODES), FP32)


def same(ours: Outcome, theirs: Outcome) -> bool:
    """Equal but for the rounding of sums."""
    return ours[:4] == theirs[:4] and all(
        isclose(a, b, rel_tol=1e-4) or not (np.isfinite(a) or np.isfinite(b))
        for a, b in zip(ours[4:], theirs[4:], strict=True)
    )


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("bits, group, symmetric", GRIDS)
def test_blocks_are_judged_alike(bits: int, group: int, symmetric: bool, damage: Callable[[Module], None]) -> None:
    for weight, mode, tried in product((gaussian(), awkward(), extreme()), MODES, TRIED_MODES):
        module = Module(bits, group, symmetric, mode, weight.copy())
        damage(module)
        with np.errstate(all="ignore"):
            expected = list(reference.judge(module.job, module.piece, tried))
            found = list(compiled.judge(module.job, module.piece, tried))
        assert len(found) == len(expected)
        assert all(map(same, found, expected)), (mode, tried)


def test_the_blocks_are_of_every_kind() -> None:
    """The table above is not idle: among its outcomes is each that there can be."""
    kinds = set()
    for damage in DAMAGE:
        module = Module(4, 32, True, "eager", awkward())
        damage(module)
        with np.errstate(all="ignore"):
            kinds |= {one[:4] for one in compiled.judge(module.job, module.piece, frozenset(MODES))}
    assert {(True, EAGER, False, True), (True, NONE, True, True), (True, NONE, False, True)} <= kinds
    assert (False, NONE, False, False) in kinds


def test_blocks_of_zeros_are_exact_in_both_maths() -> None:
    module = Module(4, 32, True, "fp32", np.zeros((8, 64), np.uint16))
    assert list(compiled.judge(module.job, module.piece, frozenset(MODES))) == [Outcome(True, frozenset(MODES))]


@pytest.mark.parametrize("rows, columns", [(8, 40_000), (2000, 32), (3, 32), (37, 1056)])
def test_rows_of_any_length(rows: int, columns: int) -> None:
    """Longer than a batch, shorter than a run of the compiler, and with groups of 33 runs."""
    for bits, group in ((4, 32), (8, columns)):
        module = Module(bits, group, True, "fp32", gaussian(rows, columns, rows), height=max(8, rows // 2 // 8 * 8))
        found = {one.modes for one in compiled.judge(module.job, module.piece, frozenset(MODES))}
        assert found <= {FP32, frozenset(MODES)}


def test_the_kernels_take_on_all_but_the_extremes() -> None:
    taken = [kernels_take(Module(4, 32, True, "fp32", weight)) for weight in (gaussian(), awkward(), extreme())]
    assert taken == [True, True, False]


def kernels_take(module: Module) -> bool:
    scales = module.scale
    return bool((scales >= kernels.LEAST).all() and (scales <= kernels.MOST).all())


@pytest.mark.parametrize("bits, group, symmetric", GRIDS)
def test_measurements_are_the_same(bits: int, group: int, symmetric: bool) -> None:
    module = Module(bits, group, symmetric, "eager", awkward())
    calibrate(module)
    with np.errstate(all="ignore"):
        expected, found = (by.count(module.job, module.piece) for by in (reference, compiled))
    assert (found.steps, found.saturated) == (expected.steps, expected.saturated)
    assert isclose(found.error, expected.error, rel_tol=1e-5)
    assert isclose(found.size, expected.size, rel_tol=1e-5)


# When they are used


def test_small_checkpoints_are_judged_without_loading_them() -> None:
    assert not compiled.is_worth(compiled.WORTH - 1)
    assert compiled.is_worth(compiled.WORTH)


@pytest.mark.parametrize(
    "hindrance",
    [
        "sys.modules['numba'] = None",
        "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []",
    ],
    ids=["no numba", "no folder for what it compiles"],
)
def test_where_they_cannot_be_loaded_the_reference_judges(hindrance: str) -> None:
    code = f"import sys; {hindrance}; from verify import compiled; assert not compiled.is_worth(1 << 40)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("weight", {"dtype": "F16"}),
    ("weight_scale", {"dtype": "F32"}),
    ("weight_packed", {"nbytes": 383}),
    ("weight_scale", {"nbytes": 46}),
    ("weight_zero_point", {"nbytes": 8}),
    ("weight", {"nbytes": 1534}),
]


@pytest.mark.parametrize("part, fields", UNKNOWN)
def test_other_dtypes_and_sizes_are_left_to_the_reference(part: str, fields: dict[str, Any]) -> None:
    assert compiled.is_supported(small_job(32))
    assert not compiled.is_supported(small_job(32, {part: fields}))


def test_groups_that_are_no_multiple_of_32_are_left_to_the_reference() -> None:
    assert compiled.is_supported(small_job(96))
    assert not compiled.is_supported(small_job(48))


def small_job(group: int, changes: dict[str, dict[str, Any]] | None = None) -> Job:
    """A module [8, 96] of asymmetric 4-bit groups."""
    groups = 96 // group
    refs = {
        "weight": TensorRef("m.weight", "BF16", (8, 96), Path(), 0, 1536),
        "weight_packed": TensorRef("m.weight_packed", "I32", (8, 12), Path(), 0, 384),
        "weight_scale": TensorRef("m.weight_scale", "BF16", (8, groups), Path(), 0, 16 * groups),
        "weight_zero_point": TensorRef("m.weight_zero_point", "I32", (1, groups), Path(), 0, 4 * groups),
    }
    for part, fields in (changes or {}).items():
        refs[part] = refs[part]._replace(**fields)
    origin = refs.pop("weight")
    return Job(Packed("m", refs, None, (8, 96), (8, 96), None), origin, Grid(origin.dtype, 4, group, False))
