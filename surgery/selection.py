"""Which modules of a draft could be packed: dense weights by module name, fused experts one projection at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkpoint import TensorRef, dtypes, split_name
from checkpoint.draft import Draft
from checkpoint.families import Family, FusedSplit, find_family
from checkpoint.modules import PACKED_SUFFIXES, SUFFIXES
from checkpoint.patterns import first_match
from surgery.scheme import HEAD, Group

LINEAR = "Linear"
"""The one class name that targets may use; what it covers is the family's knowledge."""

_PACKED_ENDS = tuple(f".{suffix}" for suffix in PACKED_SUFFIXES)


@dataclass(frozen=True)
class Candidate:
    """A module that could be packed: `region` is its weight, all or part of the draft's tensor `tensor`."""

    module: str
    tensor: str
    region: TensorRef
    fused: bool = False


def candidates(draft: Draft) -> list[Candidate]:
    """Every dense weight of `draft`, with fused experts taken apart as the family says."""
    family = find_family(draft.config.value)
    found: list[Candidate] = []
    for name, source in draft.tensors.items():
        if not isinstance(source, TensorRef) or name.endswith(_PACKED_ENDS):
            continue
        module, suffix = split_name(name)
        split = family.fused_split(name) if family and not suffix else None
        if suffix == "weight":
            found.append(Candidate(module, name, source))
        elif split and len(source.shape) == 3:
            found += _expert_projections(split, source)
    return found


def block_of(candidate: Candidate, family: Family | None) -> str | None:
    """The routed experts that `candidate` is one of: `...mlp.experts` for `...mlp.experts.3.up_proj`; else None."""
    if candidate.fused or (family and family.kind(candidate.module) == "expert"):
        return candidate.module.rsplit(".", 2)[0]
    return None


def is_covered(targets: tuple[str, ...], module: str, family: Family | None) -> str | None:
    """The target that covers `module`. `Linear` covers what transformers builds as nn.Linear, except the head, which
    vLLM builds as a ParallelLMHead and packs only where a target names it."""
    named = first_match((target for target in targets if target != LINEAR), module)
    if named is not None:
        return named
    if LINEAR in targets and family and family.is_linear(module) and family.kind(module) != "head":
        return LINEAR
    return None


def choose(groups: tuple[Group, ...], module: str, family: Family | None) -> tuple[Group, str] | None:
    """The first group that covers `module`, and the target by which it does."""
    for group in groups:
        target = is_covered(group.targets, module, family)
        if target is not None:
            return group, target
    return None


def dense_linears(draft: Draft) -> list[str]:
    """Modules that engines build as linear layers and that `draft` keeps dense, fused experts by their split names.

    Where the family is unknown, every dense matrix that is no embedding counts: naming too much is harmless. A head
    tied to the embedding has no tensor, yet transformers builds it as a Linear, which `Linear` targets.
    """
    family = find_family(draft.config.value)
    stored = any(name in draft.tensors for name in (HEAD, *(f"{HEAD}.{suffix}" for suffix in SUFFIXES)))
    modules = [] if stored else [HEAD]
    for candidate in candidates(draft):
        if candidate.fused or _is_linear(candidate, family):
            modules.append(candidate.module)
    return modules


def _is_linear(candidate: Candidate, family: Family | None) -> bool:
    if family and family.kind(candidate.module) is not None:
        return family.is_linear(candidate.module)
    return len(candidate.region.shape) == 2 and "embed" not in candidate.module


def packed_modules(draft: Draft) -> list[str]:
    """Modules that `draft` stores packed."""
    end = ".weight_packed"
    return [name.removesuffix(end) for name in draft.tensors if name.endswith(end) and name != end]


def _expert_projections(split: FusedSplit, ref: TensorRef) -> Iterator[Candidate]:
    """[E, parts * I, H] cut into E * parts matrices [I, H], each a contiguous byte range."""
    experts, stacked, columns = ref.shape
    rows = stacked // len(split.parts)
    nbytes = dtypes.nbytes(ref.dtype, (rows, columns))
    offset = ref.offset
    for expert in range(experts):
        for part in split.parts:
            module = f"{split.owner}.{expert}.{part}"
            yield Candidate(module, ref.name, ref._replace(shape=(rows, columns), offset=offset, nbytes=nbytes), True)
            offset += nbytes
