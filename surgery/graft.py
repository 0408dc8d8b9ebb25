"""Taking tensors from another checkpoint, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoint import Checkpoint, Problem, TensorRef, split_name
from checkpoint.draft import Draft
from checkpoint.families import find_family
from checkpoint.files import is_plain_name
from checkpoint.folding import fold
from checkpoint.modules import PACKED_SUFFIXES
from checkpoint.patterns import first_match, matches, pattern_problems
from checkpoint.shelf import SHARD_SUFFIX
from surgery.ignore import complete_ignore
from surgery.quantization_config import ignore_list, invalid_entries, unsupported, with_ignore
from surgery.selection import dense_linears

GRAFT_SHARD = "model-graft.safetensors"

_WEIGHTS = ("weight", "weight_packed")


@dataclass(frozen=True)
class Bound:
    """What a graft may take at most. A pattern that catches more than was meant is the usual accident."""

    tensors: int = 1_000
    nbytes: int = 4 * 1024**3

    def problems(self, taken: Iterable[TensorRef]) -> list[Problem]:
        refs = list(taken)
        total = sum(ref.nbytes for ref in refs)
        if len(refs) <= self.tensors and total <= self.nbytes:
            return []
        found = f"would take {len(refs):,} tensors, {total:,} bytes"
        expected = f"at most {self.tensors:,} tensors, {self.nbytes:,} bytes"
        remedy = "Narrow --tensors, or raise --max-tensors and --max-bytes"
        return [Problem("graft-too-large", found, expected=expected, remedy=remedy)]


def graft(
    draft: Draft, source: Checkpoint, patterns: Iterable[str], *, bound: Bound | None = None, shard: str | None = None
) -> Draft:
    """Take the tensors of `source` whose names match `patterns` (whole names, or `re:` regular expressions).

    A tensor that the draft has under that name is replaced where it stands; others go to `shard` (model-graft). Shapes
    must agree. Dense linear modules that are new to a packed export join its ignore list.
    """
    patterns = tuple(patterns)
    problems = pattern_problems(patterns)
    if problems:
        return draft.refusing(problems)
    for pattern in patterns:
        if not any(matches(pattern, name) for name in source.tensors):
            found, remedy = f"'{pattern}' matches no tensor", "Give whole tensor names, or re: patterns"
            problems.append(Problem("pattern-unmatched", found, str(source.root), remedy=remedy))
    taken = {name: ref for name, ref in source.tensors.items() if first_match(patterns, name) is not None}
    bound = bound or Bound()
    problems += bound.problems(taken.values())
    problems += shape_problems(draft, taken)
    problems += twofold_problems(draft, taken)
    if problems:
        return draft.refusing(problems)
    grafted = ignoring_new(place(draft, taken, shard or GRAFT_SHARD), draft)
    total = sum(ref.nbytes for ref in taken.values())
    parameters = {"tensors": list(patterns), "max_tensors": bound.tensors, "max_bytes": bound.nbytes}
    summary = f"{len(taken):,} tensors, {total:,} bytes, from {source.root}"
    return grafted.noting("graft", summary, parameters, sources={"from": source})


def place(draft: Draft, taken: Mapping[str, TensorRef], shard: str) -> Draft:
    """`taken` replaces what stands under the same names; what is new goes to `shard`."""
    present = {name: {name: ref} for name, ref in taken.items() if name in draft.tensors}
    new = {name: ref for name, ref in taken.items() if name not in draft.tensors}
    draft = draft.replaced(present) if present else draft
    return draft.added(new, free_label(draft, shard)) if new else draft


def free_label(draft: Draft, wanted: str) -> str:
    """`wanted`, with a number where a file of that name lies unindexed in the origin.

    Raises ValueError for what is no name of a shard.
    """
    if not is_plain_name(wanted) or not wanted.endswith(SHARD_SUFFIX):
        raise ValueError(f"{wanted!r} is no plain file name that ends in {SHARD_SUFFIX}")
    stem, number, label = wanted.removesuffix(SHARD_SUFFIX), 1, wanted
    while label in draft.origin.strays:
        number += 1
        label = f"{stem}-{number}{SHARD_SUFFIX}"
    return label


def shape_problems(draft: Draft, taken: Mapping[str, TensorRef]) -> list[Problem]:
    """Tensors that the draft has in another shape."""
    problems = []
    for name, ref in taken.items():
        present = draft.tensors.get(name)
        if present is not None and present.shape != ref.shape:
            found, expected = f"shape {list(ref.shape)}", f"{list(present.shape)}, as in the export"
            problems.append(Problem("shape-differs", found, ref.path.name, name, expected))
    return problems


def twofold_problems(draft: Draft, taken: Mapping[str, TensorRef]) -> list[Problem]:
    """Weights that the draft has in another form, packed or dense, fused or one by one: both together would be two
    answers to one question."""
    family = find_family(draft.config.value)
    fused = {split.owner for name in draft.tensors if family and (split := family.fused_split(name))}
    clashing: list[tuple[str, str]] = []
    for name in taken:
        module, suffix = split_name(name)
        split = family.fused_split(name) if family else None
        single = [f"{split.owner}.0.{part}.{end}" for part in split.parts for end in _WEIGHTS] if split else []
        if suffix == "weight" and any(f"{module}.{packed}" in draft.tensors for packed in PACKED_SUFFIXES):
            clashing.append((name, "packed"))
        elif suffix in PACKED_SUFFIXES and f"{module}.weight" in draft.tensors:
            clashing.append((name, "dense"))
        elif any(other in draft.tensors for other in single):
            clashing.append((name, "expert by expert"))
        elif suffix and module.rsplit(".", 2)[0] in fused:
            clashing.append((name, "in a fused parameter"))
    remedy = "Exclude it from --tensors, or start from an export that has it in the same form"
    return [
        Problem("stored-otherwise", f"the export has it {folded.state}", tensor=folded.pattern, remedy=remedy)
        for folded in fold(clashing)
    ]


def ignoring_new(grafted: Draft, before: Draft) -> Draft:
    """Where the draft is packed, its ignore list with entries for the dense linear modules that `before` lacked."""
    if unsupported(grafted) or invalid_entries(grafted):
        return grafted
    known, entries = set(dense_linears(before)), ignore_list(grafted)
    new = [module for module in dense_linears(grafted) if module not in known]
    complete = complete_ignore(grafted, entries, new)
    return with_ignore(grafted, complete) if complete != entries else grafted
