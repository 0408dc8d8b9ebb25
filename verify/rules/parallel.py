"""Shapes that an engine's kernels or a tensor-parallel split cannot take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from verify.case import Case
from verify.descent import EXPERT
from verify.engines import load_engine
from verify.gathering import gather
from verify.registry import Hit, rule
from verify.rules.triplets import schemed

ROW_PARALLEL = ("o_proj", "out_proj", "down_proj")
"""Modules whose columns are split over the ranks, in every engine and family known here."""

RANKS = (1, 2, 4, 8, 16)

TILE_ROWS, TILE_COLUMNS = 64, 128
"""Marlin's tile (vllm marlin_utils.py, min_thread_n and min_thread_k); padded since 0.24, but not for experts."""

PADDED_SINCE = (0, 24, 0, 0)


@rule(
    "T07",
    "groups divide the columns, on every rank",
    evidence="vllm#49949, vllm#41511",
    remedy="Serve on fewer ranks, or quantize in smaller groups: ckpt quantize BASE --group-size 32",
)
def groups_divide(case: Case) -> Iterable[Hit]:
    """On one rank always, on more by `--tp`; without it, on how many ranks the groups would divide is a fact."""
    for ranks in dict.fromkeys((1, case.tp or 1)):
        yield from gather(_undivided(case, ranks), consequence="engines raise: not divisible by group_size")
    if case.tp is None:
        _tell_most_ranks(case)


def _tell_most_ranks(case: Case) -> None:
    """The largest number of ranks on which the columns divide, and the first module that allows no more."""
    limits: dict[int, str] = {}
    for module, scheme in schemed(case):
        if module.size and scheme.group_size and module.leaf in ROW_PARALLEL:
            most = max((n for n in RANKS if module.size[1] % (n * scheme.group_size) == 0), default=0)
            limits.setdefault(most, f"{module.name}: {module.size[1]} columns in groups of {scheme.group_size}")
    most = min(limits, default=0)
    if most:
        bound = f"; {limits[most]}" if most < RANKS[-1] else " and more"
        case.notes.fact(f"tensor parallelism: groups divide on up to {most} rank{'s' * (most > 1)}{bound}")


def _undivided(case: Case, ranks: int) -> Iterator[tuple[str, str]]:
    for module, scheme in schemed(case):
        size, group = module.size, scheme.group_size
        if size is None or group is None:
            continue
        if ranks == 1 and size[1] % group:
            yield module.name, f"{size[1]} columns do not divide by the group size {group}"
        elif ranks > 1 and module.leaf in ROW_PARALLEL and size[1] % group == 0 and size[1] % (ranks * group):
            yield module.name, f"{size[1]} columns over {ranks} ranks do not divide by the group size {group}"


@rule(
    "T08",
    "shapes fit the tiles of vLLM's kernels",
    severity="warning",
    engines=("vllm",),
    evidence="vllm#57792",
    remedy="Quantize other modules, or serve with vLLM 0.24 or later",
    versions="vLLM pads off-tile shapes of linear layers since 0.24",
)
def tiles(case: Case) -> Iterable[Hit]:
    yield from gather(_hidden(case), consequence="vLLM's Marlin kernel for experts fails with a bare AssertionError")
    if _pads(case):
        return
    consequence = "vLLM before 0.24 raises: not divisible by min_thread_n or min_thread_k"
    yield from gather(_off_tile(case), consequence=consequence)


def _hidden(case: Case) -> Iterator[tuple[str, str]]:
    """Experts whose hidden size, the rows of down_proj and the columns of the others, is off the tile."""
    for module, _ in schemed(case):
        match, size = EXPERT.fullmatch(module.name), module.size
        if match and size:
            hidden = size[0] if match["part"] == "down_proj" else size[1]
            if hidden % TILE_COLUMNS:
                yield module.name, f"hidden size {hidden} does not divide by {TILE_COLUMNS}"


def _off_tile(case: Case) -> Iterator[tuple[str, str]]:
    for module, _ in schemed(case):
        size = module.size
        if size is None or EXPERT.fullmatch(module.name):
            continue
        row_parallel = module.leaf in ROW_PARALLEL
        rows = size[0] if row_parallel else size[0] // (case.tp or 1)
        columns = size[1] // (case.tp or 1) if row_parallel else size[1]
        if rows % TILE_ROWS or columns % TILE_COLUMNS:
            yield module.name, f"[{rows}, {columns}] is no multiple of the tile [{TILE_ROWS}, {TILE_COLUMNS}]"


def _pads(case: Case) -> bool:
    """Is vLLM judged in no release before it began to pad?"""
    engines = [load_engine(label) for label in case.engines if label.partition("@")[0] == "vllm"]
    return all(engine.version >= PADDED_SINCE for engine in engines)
