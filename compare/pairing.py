"""Which weight of one checkpoint is which of the other. Experts fused on one side only are taken apart there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from checkpoint import Checkpoint, TensorRef, split_name
from checkpoint.families import find_family
from compare.weights import Weight, raw_parts, weights_of
from verify.descent import split_pieces


@dataclass(frozen=True)
class Pair:
    """The weight `name` on both sides, `a` the one that the other is measured against."""

    a: Weight
    b: Weight

    @property
    def name(self) -> str:
        return self.a.name

    @cached_property
    def is_same_form(self) -> bool:
        """Are the tensors of both alike but for their bytes?"""
        return {suffix: (ref.dtype, ref.shape) for suffix, ref in self.a.parts.items()} == {
            suffix: (ref.dtype, ref.shape) for suffix, ref in self.b.parts.items()
        }

    @cached_property
    def why(self) -> str | None:
        """What stands against measuring the values of one against those of the other, None if nothing does."""
        if self.a.why or self.b.why:
            return self.a.why if self.a.why == self.b.why else "; ".join(filter(None, (self.a.why, self.b.why)))
        if self.a.shape != self.b.shape:
            return f"shape {list(self.a.shape or ())} became {list(self.b.shape or ())}"
        return None

    @cached_property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns in which both are read; weights that are dense on both sides are one long column."""
        shape = self.a.shape or ()
        if self.a.is_packed or self.b.is_packed:
            return shape[0], shape[1]
        return prod(shape), 1

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True)
class Pairing:
    """Weights on both sides, on the left alone and on the right alone."""

    pairs: tuple[Pair, ...]
    removed: tuple[Weight, ...]
    added: tuple[Weight, ...]


def pair_up(a: Checkpoint, b: Checkpoint) -> Pairing:
    """Pair by module. How a family fuses its experts is its file's matter; of unknown ones names alone count."""
    tensors_a, tensors_b = _taken_apart(a, b), _taken_apart(b, a)
    ours, theirs = weights_of(tensors_a, tensors_b, a.config), weights_of(tensors_b, tensors_a, b.config)
    for name in [name for name in ours if name in theirs and _are_packed_unread(ours[name], theirs[name])]:
        for side in (ours, theirs):
            side.update({part.name: part for part in raw_parts(side.pop(name))})
    return Pairing(
        tuple(Pair(one, theirs[name]) for name, one in ours.items() if name in theirs),
        tuple(one for name, one in ours.items() if name not in theirs),
        tuple(one for name, one in theirs.items() if name not in ours),
    )


def _taken_apart(one: Checkpoint, other: Checkpoint) -> dict[str, TensorRef]:
    """The tensors of `one`, a fused parameter as the projections that `other` has as modules of their own."""
    family = find_family(one.config)
    if family is None:
        return dict(one.tensors)
    modules = {split_name(name)[0] for name in other.tensors}
    pieces = (piece for ref in one.tensors.values() for piece in split_pieces(ref, family, modules))
    return {piece.name: piece for piece in pieces}


def _are_packed_unread(a: Weight, b: Weight) -> bool:
    """Are both packed, and in such a way that their tensors can be compared but not their values?"""
    return a.is_packed and b.is_packed and bool(a.why or b.why)
