"""The output head: its targets, its ignore entries, and the engines that can read it packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from verify.case import Case
from verify.claims import is_draft
from verify.engines import concerned, config_groups, experts_group
from verify.gathering import folded
from verify.mismatches import Mismatch, mismatch_hits
from verify.registry import Hit, rule
from verify.rules.config import PACKED_FORMAT, group_format, labels
from verify.rules.matching import targeted

HEAD_TARGET = "re:.*lm_head$"
SUPPORT = {"vllm": "0.20", "sglang": "0.5.19"}
"""The releases since which a packed head loads (`packed_head` in the engines' files)."""


@rule(
    "C17",
    "targets assign the head and the experts to their groups in every engine",
    evidence="transformers get_experts_scheme; vLLM calls the head language_model.lm_head, and lm_head in the draft",
    remedy="Target the head by 're:.*lm_head$'",
)
def head_target(case: Case) -> Iterable[Hit]:
    """The head must be reached under all its names, and transformers' guess at the experts' group must be right."""
    yield from mismatch_hits(case, "C17", _misses, lambda one: f"Target the head by '{HEAD_TARGET}'")
    yield from _experts_scheme(case)


def _misses(mismatch: Mismatch) -> str:
    failure = mismatch.failures[0]
    return f"stored packed; target '{mismatch.blamed}' does not reach {failure.resolution.layer}"


def _experts_scheme(case: Case) -> Iterator[Hit]:
    concerns, quantization = labels(case, "transformers"), case.quantization or {}
    experts = [
        slot.name for slot in case.slots if slot.kind == "expert" and slot.packed and not is_draft(case, slot.name)
    ]
    if not concerns or not experts:
        return
    taken, groups = experts_group(quantization), config_groups(quantization)
    wrong = [name for name in experts if _differs(groups, case.groups.group(name), taken)]
    if wrong:
        real = case.groups.group(wrong[0])
        found = f"in {real}, unpacked by {taken}"
        consequence = "RuntimeError in the weight conversion, or wrong numbers"
        remedy = f"Put {real} first, and write the targets of {taken} as regexes"
        yield Hit(folded(wrong), found, consequence, remedy, engines=concerns, count=len(wrong))


def _differs(groups: Mapping[str, object], real: str | None, taken: str | None) -> bool:
    if real is None or taken is None or real == taken:
        return False
    schemes = [group.get("weights") if isinstance(group, dict) else None for group in (groups[real], groups[taken])]
    return schemes[0] != schemes[1]


@rule(
    "C20",
    "a dense head is ignored, a packed head is not",
    evidence="llm-compressor#1820; compressed-tensors matches nn.Linear",
    remedy="ckpt ignore SRC add lm_head",
)
def head_ignored(case: Case) -> Iterable[Hit]:
    yield from mismatch_hits(case, "C20", lambda one: _listed(case, one), _unlist)


def _listed(case: Case, mismatch: Mismatch) -> str:
    if not mismatch.slot.packed:
        return targeted(case, mismatch)
    entry = next(one.resolution.entry for one in mismatch.failures if one.resolution.ignored)
    return f"stored packed, ignored by '{entry}'"


def _unlist(mismatch: Mismatch) -> str:
    if not mismatch.slot.packed:
        return "ckpt ignore SRC add lm_head"
    entry = next(one.resolution.entry for one in mismatch.failures if one.resolution.ignored)
    return f"ckpt ignore SRC remove '{entry}'"


@rule(
    "L01",
    "a packed head has one row for each token",
    evidence="vLLM VocabParallelEmbedding.weight_loader",
    remedy="ckpt int8-head SRC --base BASE",
)
def head_rows(case: Case) -> Iterable[Hit]:
    for name in packed_heads(case):
        packed = case.modules[name].tensors.get("weight_packed")
        rows = case.checkpoint.tensors[packed].shape[:1] if packed else ()
        vocab = (case.family.text(case.config) if case.family else case.config).get("vocab_size")
        if rows and isinstance(vocab, int) and rows[0] != vocab:
            found, consequence = f"{rows[0]} rows, vocab_size {vocab}", "AssertionError in vLLM"
            yield Hit(name, found, consequence, "ckpt int8-head SRC --base BASE")
        group = case.groups.group(name)
        data = config_groups(case.quantization or {}).get(group) if group else None
        if data is not None and group_format(case.quantization or {}, data) != PACKED_FORMAT:
            found = f"{group} is not {PACKED_FORMAT}"
            yield Hit(name, found, "no engine reads the head packed", f"Set the format to {PACKED_FORMAT!r}")


@rule(
    "L02",
    "the engines can read a packed head",
    evidence="vllm#37291; sglang#35228, #35358; SGLang get_embed_and_head",
    remedy="Use a later release, or keep the head dense",
    versions="a packed head loads since vLLM 0.20 and SGLang 0.5.19",
)
def head_support(case: Case) -> Iterable[Hit]:
    cannot = mismatch_hits(case, "L02", lambda one: "stored packed, built dense whatever the config says", _keep_dense)
    yield from cannot
    for name in packed_heads(case):
        versions = ", ".join(f"{engine.title} {SUPPORT[engine.name]}" for engine in concerned(case, *SUPPORT))
        if versions:
            case.notes.fact(f"{name} is packed: needs {versions} or later")
        if any(one.engine.name == "sglang" and name in one.draft for one in case.resolved):
            expected = "AttributeError expected, since its draft takes lm_head.weight (read, not tried)"
            case.notes.fact(f"{name} is packed beside an MTP head: SGLang with speculative decoding, {expected}")


def _keep_dense(mismatch: Mismatch) -> str:
    return f"Use a later release, or keep {mismatch.slot.name} dense"


def packed_heads(case: Case) -> list[str]:
    return [slot.name for slot in case.slots if slot.kind == "head" and slot.packed]
