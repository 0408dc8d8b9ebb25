"""`lm_head` to INT8 as a further config group of an export whose body is packed already."""

from __future__ import annotations

import re
from collections.abc import Iterable

from checkpoint import CONFIG, Checkpoint, Problem
from checkpoint.draft import Draft, Source, Stored
from checkpoint.dtypes import FLOATS
from checkpoint.families import find_family
from checkpoint.modules import PACKED_SUFFIXES
from checkpoint.patterns import matches
from surgery.graft import place
from surgery.quantization_config import current, unsupported, with_group, without_cover
from surgery.scheme import GROUP_SIZES, Group, Maths, Scheme
from surgery.selection import HEAD
from surgery.work import PackRows

HEAD_TARGET = "re:.*lm_head$"
"""The one spelling that vLLM's main model and draft, SGLang and transformers all resolve to the head."""


def int8_head(
    draft: Draft, *, base: Checkpoint | None = None, scheme: Scheme | None = None, maths: Maths = "fp32"
) -> Draft:
    """Pack the head by `scheme` (INT8 g128), from the draft's dense head or, where it has none, the base's.

    Ignore entries that cover the head are removed; one that covers more is replaced by entries for the rest.
    """
    scheme = scheme or Scheme(8, 128)
    problems = [*_config_problems(draft), *_state_problems(draft, base)]
    name = f"{HEAD}.weight"
    source = draft.tensors.get(name)
    if source is None and base is not None and name in base.tensors:
        draft = place(draft, {name: base.tensors[name]}, "model-head.safetensors")
        source = draft.tensors[name]
    if isinstance(source, Stored):
        problems += _head_problems(draft, source, scheme)
    if problems or not isinstance(source, Stored):
        return draft.refusing(problems)
    work = PackRows(source.ref, scheme, maths, name)
    packed: dict[str, Source] = {f"{HEAD}.{suffix}": output for suffix, output in work.computed().items()}
    result = without_cover(draft.replaced({name: packed}), [HEAD])
    result = with_group(result, Group((HEAD_TARGET,), scheme))
    return result.noting("int8-head", f"{HEAD} {list(source.shape)} to {scheme}, {maths} maths")


def _config_problems(draft: Draft) -> Iterable[Problem]:
    yield from unsupported(draft)
    config = draft.config.value
    family = find_family(config)
    text = family.text(config) if family else config
    if config.get("tie_word_embeddings", text.get("tie_word_embeddings")) is True:
        found = "tie_word_embeddings is true: the head is the embedding, which engines read as plain rows"
        yield Problem("tied", found, CONFIG, remedy="Leave the head as it is")
    groups = (current(draft) or {}).get("config_groups")
    for group, entry in groups.items() if isinstance(groups, dict) else ():
        targets = entry.get("targets", []) if isinstance(entry, dict) else []
        named = [target for target in targets if target != "Linear" and _names_head(target)]
        for target in named:
            found = f"config_groups.{group} targets the head already ({target!r})"
            yield Problem("head-targeted", found, CONFIG, remedy="Remove that group, or give a config without it")


def _names_head(target: str) -> bool:
    try:
        return matches(target, HEAD)
    except re.error:
        return False


def _state_problems(draft: Draft, base: Checkpoint | None) -> Iterable[Problem]:
    if any(f"{HEAD}.{suffix}" in draft.tensors for suffix in PACKED_SUFFIXES):
        yield Problem("packed-already", "the head is packed already", tensor=HEAD)
    elif f"{HEAD}.weight" not in draft.tensors and (base is None or f"{HEAD}.weight" not in base.tensors):
        remedy = "Give the base that has it as --base" if base is None else "Neither export nor base has it"
        yield Problem("head-absent", "no dense head in the export", tensor=f"{HEAD}.weight", remedy=remedy)


def _head_problems(draft: Draft, source: Stored, scheme: Scheme) -> Iterable[Problem]:
    file, name = source.ref.path.name, f"{HEAD}.weight"
    if len(source.shape) != 2:
        yield Problem("not-a-matrix", f"shape {list(source.shape)}", file, name, "a matrix [vocabulary, hidden]")
        return
    if source.dtype not in FLOATS:
        yield Problem("dtype-unsupported", f"dtype {source.dtype}", file, name, "BF16, F16 or F32")
    if scheme.group_size and source.shape[1] % scheme.group_size:
        fitting = [str(n) for n in GROUP_SIZES if source.shape[1] % n == 0] + ["channel"]
        found = f"{source.shape[1]} columns do not divide into groups of {scheme.group_size}"
        yield Problem("group-size", found, file, name, remedy=f"Group sizes that do: {', '.join(fitting)}")
    family = find_family(draft.config.value)
    config = draft.config.value
    vocabulary = (family.text(config) if family else config).get("vocab_size")
    if isinstance(vocabulary, int) and source.shape[0] != vocabulary:
        found = f"{source.shape[0]} rows"
        yield Problem("head-rows", found, file, name, f"vocab_size {vocabulary}: vLLM asserts that they are equal")
