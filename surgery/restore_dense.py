"""Dense tensors that an exporter altered or dropped, back from the base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from checkpoint import Checkpoint, Problem, Refused
from checkpoint.draft import Draft
from checkpoint.folding import fold
from checkpoint.patterns import first_match, pattern_problems
from surgery.comparison import Difference
from surgery.graft import ignoring_new, place, twofold_problems

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
    refused = {d.name: d.detail for d in differences if d.kind == "unexplained" and not first_match(named, d.name)}
    for folded in fold(refused.items()):
        remedy = "Name it with --restore if it is damage, with --keep if a smoothing step changed it on purpose"
        problems.append(Problem("dense-differs", folded.state, tensor=folded.pattern, remedy=remedy))
    back = {d.name: d.detail for d in differences if d.name not in refused}
    restored = {name: base.tensors[name] for name in back}
    problems += twofold_problems(draft, restored)
    if problems or not restored:
        return draft.refusing(problems)
    counted = Counter(back.values())
    reasons = "; ".join(f"{count} {detail}" for detail, count in counted.items())
    result = ignoring_new(place(draft, restored, RESTORED_SHARD), draft)
    parameters = {"restore": list(named), "reasons": dict(counted)}
    return result.noting("restore-dense", f"{len(restored)} tensors: {reasons}", parameters, sources={"base": base})


def keep_dense(differences: Sequence[Difference], kept: Sequence[str]) -> list[Difference]:
    """`differences` without those that `kept` declares to be meant. Raises Refused for an invalid pattern."""
    problems = pattern_problems(kept)
    if problems:
        raise Refused(problems)
    return [d for d in differences if first_match(kept, d.name) is None]
