"""Which dense tensors of an export are not the base's, and whether an exporter's rounding explains the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from checkpoint import Checkpoint, Files, TensorRef, split_name
from checkpoint.families import find_family
from checkpoint.files import CHUNK
from surgery.mtp import mtp_of
from surgery.rerounding import EXPLAINABLE, explanations, floats, largest_difference, turns_into

Kind = Literal["missing", "explained", "unexplained"]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Difference:
    """A dense tensor of the base that the export lacks or holds otherwise, and in what way."""

    name: str
    kind: Kind
    detail: str


def compare_dense(export: Checkpoint, base: Checkpoint, progress: Progress = lambda nbytes: None) -> list[Difference]:
    """Compare every dense tensor of both, the MTP head apart, a few MiB of each at a time."""
    prefix = mtp_of(base.config).prefix
    fused = _fused_owners(export)
    differences: list[Difference | None] = []
    with Files() as files:
        for name, ref in base.tensors.items():
            if name.startswith(prefix):
                continue
            other = export.tensors.get(name)
            if other is None:
                differences.append(_absence(name, base, export, fused))
            else:
                differences.append(_difference(name, _Pair(ref, other, files)))
                progress(ref.nbytes + other.nbytes)
    return [difference for difference in differences if difference]


def _absence(name: str, base: Checkpoint, export: Checkpoint, fused: frozenset[str]) -> Difference | None:
    if _has_image(name, base, export, fused):
        return None
    family = find_family(base.config)
    if family and family.kind(split_name(name)[0]) == "expert":
        return Difference(name, "unexplained", "missing, packed or not: the experts were not exported whole")
    return Difference(name, "missing", "missing")


@dataclass(frozen=True)
class _Pair:
    """The tensor of the base and that of the export."""

    mine: TensorRef
    theirs: TensorRef
    files: Files

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """The same elements of both, CHUNK bytes of the wider one at a time. Shapes must be equal."""
        elements = prod(self.mine.shape)
        step = CHUNK // 8
        for start in range(0, elements, step):
            stop = min(start + step, elements)
            yield self._read(self.mine, start, stop, elements), self._read(self.theirs, start, stop, elements)

    def _read(self, ref: TensorRef, start: int, stop: int, elements: int) -> bytes:
        # `step` is a multiple of 8, so that elements of less than a byte fill whole bytes here, too
        first, end = start * ref.nbytes // elements, stop * ref.nbytes // elements
        return bytes(self.files.read(ref.path, ref.offset + first, end - first))


def _difference(name: str, pair: _Pair) -> Difference | None:
    mine, theirs = pair.mine, pair.theirs
    if mine.shape != theirs.shape:
        return Difference(name, "unexplained", f"shape {list(theirs.shape)}, {list(mine.shape)} in the base")
    if mine.dtype == theirs.dtype and all(raw == other for raw, other in pair.blocks()):
        return None
    if not {mine.dtype, theirs.dtype} <= EXPLAINABLE:
        found = "other bytes" if mine.dtype == theirs.dtype else f"dtype {theirs.dtype}, {mine.dtype} in the base"
        return Difference(name, "unexplained", found)
    return _rounding(name, pair)


def _rounding(name: str, pair: _Pair) -> Difference:
    """A way that turns all of the base's values into all of the export's, or how far apart they are."""
    ways = explanations(pair.mine.dtype, pair.theirs.dtype)
    alive, largest = list(ways), 0.0
    for raw, other in pair.blocks():
        before, after = floats(raw, pair.mine.dtype), floats(other, pair.theirs.dtype)
        alive = [label for label in alive if turns_into(ways[label], before, after)]
        largest = max(largest, largest_difference(before, after))
    if alive:
        return Difference(name, "explained", alive[0])
    return Difference(name, "unexplained", f"differs by up to {largest:.3g}, which no rounding explains")


def _fused_owners(export: Checkpoint) -> frozenset[str]:
    """The modules whose experts the export keeps in fused parameters."""
    family = find_family(export.config)
    splits = (family.fused_split(name) for name in export.tensors) if family else ()
    return frozenset(split.owner for split in splits if split)


def _has_image(name: str, base: Checkpoint, export: Checkpoint, fused: frozenset[str]) -> bool:
    """Is a dense tensor of the base there in another form: packed, fused, or taken apart by expert?"""
    module, suffix = split_name(name)
    if f"{module}.weight_packed" in export.tensors:
        return suffix == "weight"
    if module.rsplit(".", 2)[0] in fused:
        return True
    family = find_family(base.config)
    split = family.fused_split(name) if family else None
    owners = [f"{split.owner}.0.{part}" for part in split.parts] if split else []
    return bool(owners) and all(
        f"{o}.weight_packed" in export.tensors or f"{o}.weight" in export.tensors for o in owners
    )
