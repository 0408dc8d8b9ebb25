"""What a checkpoint should hold, and where in the base each weight of it comes from.

A base may store all experts of a layer in one 3-D parameter [E, parts * I, H]; exports store each expert's projections
as modules of their own. A projection is a contiguous run of the parameter's bytes, so its origin is a `TensorRef` like
any other.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from checkpoint import Checkpoint, TensorRef, split_name
from checkpoint.families import Expected, ExpertBlock, Family, FusedSplit, Spec

UNNAMED_SPLITS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""How every known exporter takes fused experts apart (llmcompressor model_free_ptq); for families without a file."""

EXPERT = re.compile(r"(?P<owner>.+\.experts)\.(?P<index>\d+)\.(?P<part>\w+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor the checkpoint should hold, by the name it has while dense.

    `dtypes` are those allowed, empty for any float; `origin` is where its bytes are in the base.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = ()
    optional: bool = False
    origin: TensorRef | None = None


def wanted_from_base(base: Checkpoint, family: Family | None, modules: Container[str]) -> dict[str, Wanted]:
    """Every tensor of the base; fused experts taken apart where `modules` has some of them apart."""
    wanted: dict[str, Wanted] = {}
    for ref in base.tensors.values():
        for piece in split_pieces(ref, family, modules):
            wanted[piece.name] = Wanted(piece.name, piece.shape, (ref.dtype,), origin=piece)
    return wanted


def wanted_from_spec(spec: Spec, modules: Container[str]) -> dict[str, Wanted]:
    """Every tensor that the config calls for, the experts of each layer in the layout that they are stored in."""
    expected = _expected(spec, modules)
    return {name: Wanted(name, one.shape, one.dtypes, one.optional) for name, one in expected.items()}


def _expected(spec: Spec, modules: Container[str]) -> dict[str, Expected]:
    """The layout that most layers use, and that of their own where all experts of a layer are in another."""
    usual = spec.choose_layouts(modules)
    expected, stored = spec.tensors(usual), spec.layouts_in(modules)
    unusual = [b for b in spec.experts if len(stored[b.owner]) == 1 and stored[b.owner][0] != usual[b.scope]]
    layouts = {(block.scope, stored[block.owner][0]) for block in unusual}
    all_in = {(scope, layout): spec.tensors({**usual, scope: layout}) for scope, layout in layouts}
    for block in unusual:
        layout = stored[block.owner][0]
        others = all_in[block.scope, layout]
        for name in _tensors_of(block, usual[block.scope], expected):
            del expected[name]
        expected |= {name: others[name] for name in _tensors_of(block, layout, others)}
    return expected


def _tensors_of(block: ExpertBlock, layout: str, expected: Container[str]) -> list[str]:
    return [name if name in expected else f"{name}.weight" for name in block.modules(layout)]


def split_pieces(ref: TensorRef, family: Family | None, modules: Container[str]) -> list[TensorRef]:
    """The projections of a fused parameter if `modules` has any of them, else the tensor itself."""
    split = fused_split(ref, family)
    if split is None:
        return [ref]
    pieces = list(projections(ref, split))
    return pieces if any(split_name(piece.name)[0] in modules for piece in pieces) else [ref]


def fused_split(ref: TensorRef, family: Family | None) -> FusedSplit | None:
    """How a 3-D parameter of experts divides; None for anything else."""
    if len(ref.shape) != 3:
        return None
    owner, _, leaf = ref.name.rpartition(".")
    split = family.fused_split(ref.name) if family else None
    if split is None and family is None and leaf in UNNAMED_SPLITS and owner.endswith("experts"):
        split = FusedSplit(ref.name, owner, UNNAMED_SPLITS[leaf])
    return split if split and ref.shape[1] % len(split.parts) == 0 else None


def projections(ref: TensorRef, split: FusedSplit) -> Iterator[TensorRef]:
    """Each expert's projections [I, H], as runs of the bytes of the fused parameter [E, parts * I, H]."""
    experts, rows, columns = ref.shape
    rows //= len(split.parts)
    size = ref.nbytes // (experts * len(split.parts)) if experts else 0
    for expert in range(experts):
        for part, projection in enumerate(split.parts):
            offset = ref.offset + (expert * len(split.parts) + part) * size
            name = f"{split.owner}.{expert}.{projection}.weight"
            yield TensorRef(name, ref.dtype, (rows, columns), ref.path, offset, size)
