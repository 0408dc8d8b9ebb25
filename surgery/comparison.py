"""Which dense tensors of an export are not the base's, and whether an exporter's rounding explains the difference."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Literal

from checkpoint import Checkpoint, Files, TensorRef, split_name
from checkpoint.families import Family, find_family
from checkpoint.files import CHUNK
from surgery.rerounding import EXPLAINABLE, explain, explanations, largest_difference

Kind = Literal["missing", "explained", "unexplained"]


@dataclass(frozen=True)
class Difference:
    """A dense tensor of the base that the export lacks or holds otherwise, and in what way."""

    name: str
    kind: Kind
    detail: str


def compare_dense(
    export: Checkpoint, base: Checkpoint, progress: Callable[[int], None] = lambda nbytes: None
) -> list[Difference]:
    """Compare every dense tensor of both, the MTP head apart. Reads both, 8 MiB of each at a time."""
    family = find_family(base.config)
    prefix = family.mtp.prefix if family and family.mtp else "mtp."
    with Files() as files:
        return [
            difference
            for name, ref in base.tensors.items()
            if not name.startswith(prefix) and (difference := _difference(name, ref, export, family, files, progress))
        ]


def _difference(
    name: str, ref: TensorRef, export: Checkpoint, family: Family | None, files: Files, progress: Callable[[int], None]
) -> Difference | None:
    other = export.tensors.get(name)
    if other is None:
        return None if _has_image(name, export.tensors, family) else Difference(name, "missing", "not in the export")
    if other.shape != ref.shape:
        return Difference(name, "unexplained", f"shape {list(other.shape)}, {list(ref.shape)} in the base")
    if not {ref.dtype, other.dtype} <= EXPLAINABLE:
        equal = ref.dtype == other.dtype and all(a == b for a, b in _pairs(ref, other, files, progress))
        return None if equal else Difference(name, "unexplained", f"dtype {other.dtype}, {ref.dtype} in the base")
    return _numeric_difference(name, ref, other, files, progress)


def _numeric_difference(
    name: str, ref: TensorRef, other: TensorRef, files: Files, progress: Callable[[int], None]
) -> Difference | None:
    """Block by block: the ways that explain all blocks so far stay alive."""
    alive = set(explanations(ref.dtype, other.dtype))
    largest, differs = 0.0, ref.dtype != other.dtype
    for mine, theirs in _pairs(ref, other, files, progress):
        if ref.dtype == other.dtype and mine == theirs and not differs:
            continue
        differs = True
        largest = max(largest, largest_difference(mine, ref.dtype, theirs, other.dtype))
        alive = set(explain(mine, ref.dtype, theirs, other.dtype, alive))
    if not differs:
        return None
    if alive:
        label = next(way for way in explanations(ref.dtype, other.dtype) if way in alive)
        return Difference(name, "explained", label)
    return Difference(name, "unexplained", f"differs by up to {largest:.3g}, which no rounding explains")


def _pairs(
    ref: TensorRef, other: TensorRef, files: Files, progress: Callable[[int], None]
) -> Iterator[tuple[bytes, bytes]]:
    """The same elements of both, CHUNK bytes of the base at a time."""
    elements = max(1, ref.nbytes and CHUNK // 4)
    size, other_size = (r.nbytes // max(1, _elements(r)) for r in (ref, other))
    for start in range(0, _elements(ref), elements):
        count = min(elements, _elements(ref) - start)
        mine = files.read(ref.path, ref.offset + start * size, count * size)
        theirs = files.read(other.path, other.offset + start * other_size, count * other_size)
        progress(len(mine) + len(theirs))
        yield bytes(mine), bytes(theirs)


def _elements(ref: TensorRef) -> int:
    count = 1
    for size in ref.shape:
        count *= size
    return count


def _has_image(name: str, export: Container[str], family: Family | None) -> bool:
    """Is a dense tensor of the base there in another form: packed, or taken apart by expert?"""
    module, suffix = split_name(name)
    if suffix == "weight" and f"{module}.weight_packed" in export:
        return True
    split = family.fused_split(name) if family else None
    owners = [f"{split.owner}.0.{part}" for part in split.parts] if split else []
    return bool(owners) and all(f"{o}.weight_packed" in export or f"{o}.weight" in export for o in owners)
