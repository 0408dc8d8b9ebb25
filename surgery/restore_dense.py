"""Dense tensors that an exporter altered or dropped, back from the base."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint import Checkpoint, Problem
from checkpoint.draft import Draft
from checkpoint.folding import fold
from checkpoint.patterns import first_match, pattern_problems
from surgery.comparison import Difference
from surgery.graft import place

RESTORED_SHARD = "model-restored.safetensors"


def restore_dense(
    draft: Draft, base: Checkpoint, differences: Sequence[Difference], named: Sequence[str] = ()
) -> Draft:
    """Put back what is missing and what rounding explains; of what nothing explains, only what `named` covers.

    AWQ and SmoothQuant fold scales into norms on purpose: putting such a norm back would break the model, so a larger
    difference is refused until it is named, or declared meant by `keep_dense`.
    """
    problems = pattern_problems(named)
    if problems:
        return draft.refusing(problems)
    unexplained = [d for d in differences if d.kind == "unexplained" and first_match(named, d.name) is None]
    for folded in fold((d.name, d.detail) for d in unexplained):
        remedy = "Name it with --restore if it is damage, with --keep if a smoothing step changed it on purpose"
        problems.append(Problem("dense-differs", str(folded.state), tensor=folded.pattern, remedy=remedy))
    restored = {d.name: base.tensors[d.name] for d in differences if d not in unexplained}
    if problems or not restored:
        return draft.refusing(problems)
    kinds = [
        f"{sum(1 for d in differences if d.name in restored and d.detail == detail)} {detail}"
        for detail in dict.fromkeys(d.detail for d in differences if d.name in restored)
    ]
    return place(draft, restored, RESTORED_SHARD).noting(
        "restore-dense", f"{len(restored)} tensors: " + "; ".join(kinds)
    )


def keep_dense(differences: Sequence[Difference], kept: Sequence[str]) -> list[Difference]:
    """`differences` without those that `kept` declares to be meant."""
    return [d for d in differences if first_match(kept, d.name) is None]
