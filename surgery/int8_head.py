"""`lm_head` to INT8 as a further config group of an export whose body is packed already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkpoint import CONFIG, Checkpoint, Problem, TensorRef
from checkpoint.draft import Draft, Source
from checkpoint.modules import PACKED_SUFFIXES
from checkpoint.patterns import matches, pattern_problems
from surgery.graft import place
from surgery.packable import head_problems, matrix_problems, tied_problems
from surgery.quantization_config import invalid_entries, targets_of, unsupported, with_group, without_cover
from surgery.scheme import HEAD, HEAD_TARGET, Group, Maths, Scheme
from surgery.selection import LINEAR
from surgery.work import PackRows

HEAD_SHARD = "model-head.safetensors"

_WEIGHT = f"{HEAD}.weight"


def int8_head(
    draft: Draft, *, base: Checkpoint | None = None, scheme: Scheme | None = None, maths: Maths = "fp32"
) -> Draft:
    """Pack the head by `scheme` (INT8 g128), from the draft's dense head or, where it has none, the base's.

    Ignore entries that cover the head are removed; one that covers more is replaced by entries for the rest.
    """
    scheme = scheme or Scheme(8, 128)
    problems = [*unsupported(draft), *invalid_entries(draft), *tied_problems(draft.config.value)]
    problems += _target_problems(draft)
    source = _dense_head(draft, base)
    if source is None:
        problems += [] if any(problem.code == "tied" for problem in problems) else [_head_absent(draft, base)]
    else:
        faults = [*matrix_problems(source, scheme), *head_problems(source, draft.config.value)]
        problems += [replace(fault, file=source.path.name, tensor=_WEIGHT) for fault in faults]
    if problems or source is None:
        return draft.refusing(problems)
    packed = PackRows(source, scheme, maths, _WEIGHT).computed()
    outputs: dict[str, Source] = {f"{HEAD}.{suffix}": output for suffix, output in packed.items()}
    if _WEIGHT not in draft.tensors:
        draft = place(draft, {_WEIGHT: source}, HEAD_SHARD)
    result = without_cover(draft.replaced({_WEIGHT: outputs}), [HEAD])
    result = with_group(result, Group((HEAD_TARGET,), scheme))
    taken = {"base": base} if base is not None and base.tensors.get(_WEIGHT) is source else {}
    parameters = {**scheme.parameters, "maths": maths}
    summary = f"{HEAD} {list(source.shape)} to {scheme}, {maths} maths"
    return result.noting("int8-head", summary, parameters, sources=taken)


def _dense_head(draft: Draft, base: Checkpoint | None) -> TensorRef | None:
    if any(f"{HEAD}.{suffix}" in draft.tensors for suffix in PACKED_SUFFIXES):
        return None
    present = draft.tensors.get(_WEIGHT)
    if isinstance(present, TensorRef):
        return present
    return base.tensors[_WEIGHT] if base is not None and _WEIGHT in base.tensors else None


def _head_absent(draft: Draft, base: Checkpoint | None) -> Problem:
    if any(f"{HEAD}.{suffix}" in draft.tensors for suffix in PACKED_SUFFIXES):
        return Problem("packed-already", "the head is packed already", tensor=HEAD)
    remedy = "Give the base that has it as --base" if base is None else f"Nor is it in {base.root}"
    return Problem("head-absent", "no dense head in the export", tensor=_WEIGHT, remedy=remedy)


def _target_problems(draft: Draft) -> Iterator[Problem]:
    """Targets of other groups that reach the head by name, so that engines might read it by their schemes."""
    for group, target in targets_of(draft):
        place = f"config_groups.{group}"
        if pattern_problems([target]):
            yield Problem("pattern-invalid", f"{place}: target '{target}' is no regular expression", CONFIG)
        elif target != LINEAR and matches(target, HEAD):
            found = f"{place} targets the head already ('{target}')"
            yield Problem("head-targeted", found, CONFIG, remedy="Narrow that target, or remove its group")
