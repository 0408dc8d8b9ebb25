"""Taking tensors from another checkpoint, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoint import Checkpoint, Problem, TensorRef, split_name
from checkpoint.draft import Draft, Source, Stored
from checkpoint.files import is_plain_name
from checkpoint.folding import fold
from checkpoint.modules import PACKED_SUFFIXES
from checkpoint.patterns import matches, pattern_problems


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

    A tensor that the draft has under that name is replaced where it stands; others go to a new shard. Shapes must
    agree.
    """
    patterns = tuple(patterns)
    problems = pattern_problems(patterns)
    if problems:
        return draft.refusing(problems)
    hits = {pattern: [name for name in source.tensors if matches(pattern, name)] for pattern in patterns}
    for pattern in (pattern for pattern, names in hits.items() if not names):
        remedy = "Names are whole tensor names, or re: patterns matched at their start"
        problems.append(Problem("pattern-unmatched", f"{pattern!r} matches no tensor", str(source.root), remedy=remedy))
    taken = {name: source.tensors[name] for name in source.tensors if any(name in names for names in hits.values())}
    problems += (bound or Bound()).problems(taken.values())
    problems += shape_problems(draft, taken)
    problems += packed_problems(draft, taken)
    if problems:
        return draft.refusing(problems)
    grafted = place(draft, taken, shard or "model-graft.safetensors")
    total = sum(ref.nbytes for ref in taken.values())
    return grafted.noting("graft", f"{len(taken):,} tensors, {total:,} bytes, from {source.root}")


def place(draft: Draft, taken: Mapping[str, TensorRef], shard: str) -> Draft:
    """`taken` replaces what stands under the same names; what is new goes to `shard`."""
    present = {name: {name: _stored(ref)} for name, ref in taken.items() if name in draft.tensors}
    new = {name: _stored(ref) for name, ref in taken.items() if name not in draft.tensors}
    draft = draft.replaced(present) if present else draft
    return draft.added(new, free_label(draft, shard)) if new else draft


def free_label(draft: Draft, wanted: str) -> str:
    """`wanted`, with a number where the origin has a shard or a stray of that name that is not this draft's own."""
    if not is_plain_name(wanted):
        raise ValueError(f"{wanted!r} is no plain file name")
    used = {*draft.origin.shards, *draft.origin.strays} - set(draft.placement.values())
    stem, number, label = wanted.removesuffix(".safetensors"), 1, wanted
    while label in draft.origin.strays or label in used:
        number += 1
        label = f"{stem}-{number}.safetensors"
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


def packed_problems(draft: Draft, taken: Mapping[str, TensorRef]) -> list[Problem]:
    """Dense weights whose module the draft keeps packed: both together would be two answers to one question."""
    clashing = []
    for name in taken:
        module, suffix = split_name(name)
        if suffix == "weight" and any(f"{module}.{packed}" in draft.tensors for packed in PACKED_SUFFIXES):
            clashing.append((name, 0))
    remedy = "Exclude it from --tensors, or start from an export that keeps it dense"
    return [
        Problem("packed-already", "the export stores this module packed", tensor=folded.pattern, remedy=remedy)
        for folded in fold(clashing)
    ]


def _stored(ref: TensorRef) -> Source:
    return Stored(ref)
