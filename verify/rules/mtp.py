"""The MTP head: there, complete, dense, and left alone by every engine's draft model."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint import UnreadableCheckpoint
from checkpoint.patterns import PREFIX
from verify.case import Case
from verify.claims import DRAFT
from verify.engines import MTP_IGNORE, ignore_entries
from verify.engines.entries import Entries
from verify.finding import Severity
from verify.gathering import folded
from verify.mismatches import mismatch_hits
from verify.registry import Hit, rule
from verify.rules.config import labels
from verify.rules.matching import targeted

GRAFT = "ckpt graft-mtp SRC --base BASE"
IGNORE = f"ckpt ignore SRC add '{MTP_IGNORE[0]}'"


def draft_prefix(case: Case) -> str:
    return case.family.mtp.prefix if case.family and case.family.mtp else "mtp."


@rule(
    DRAFT,
    "the MTP head is there and complete if the config declares one",
    engines=("vllm", "sglang"),
    evidence="z-lab/paroquant#47: 0 % acceptance",
    remedy="ckpt graft-mtp SRC --base BASE",
)
def head_complete(case: Case) -> Iterable[Hit]:
    inventory, prefix = case.inventory, draft_prefix(case)
    if inventory is None:
        return
    missing, extra = inventory.missing.get(DRAFT, ()), inventory.extra.get(DRAFT, ())
    stored = any(name.startswith(prefix) for name in case.named)
    if missing and not stored:
        consequence = "loads without a word, and speculative decoding accepts nothing: 0 % acceptance"
        yield Hit(prefix + "*", f"none of its {len(missing)} tensors is stored", consequence, GRAFT, count=len(missing))
    elif missing:
        consequence = "the parameters stay uninitialised: low acceptance, no error"
        yield Hit(folded(missing), "missing of the MTP head", consequence, GRAFT, count=len(missing))
    if extra:
        found, consequence = "stored, and the config declares no MTP layer", "no engine reads them"
        yield Hit(folded(extra), found, consequence, GRAFT, severity="warning", count=len(extra))


@rule(
    "M02",
    "the MTP head is dense",
    severity="warning",
    engines=("vllm", "sglang"),
    evidence="vllm-mlx#471; SGLang builds mtp.fc as nn.Linear; vLLM 0.24 runs packed experts at full acceptance",
    remedy="ckpt graft-mtp SRC --base BASE",
)
def head_dense(case: Case) -> Iterable[Hit]:
    prefix = draft_prefix(case)
    failing = {one.slot.name for found in case.mismatches.values() for one in found}
    packed = [slot for slot in case.slots if slot.packed and slot.name.startswith(prefix)]
    sound = [slot for slot in packed if slot.name not in failing]
    yield from _packed_input(case, [slot.name for slot in packed if slot.name == f"{prefix}fc"])
    rest = [slot.name for slot in sound if slot.kind != "expert" and slot.name != f"{prefix}fc"]
    yield from _packed_hits(rest, "fewer drafts may be accepted", "warning")
    if any(slot.kind == "expert" for slot in sound):
        case.notes.fact("the MTP head's experts are packed: vLLM 0.24 runs them with unchanged acceptance")


def _packed_input(case: Case, names: list[str]) -> Iterable[Hit]:
    concerns = labels(case, "sglang")
    if concerns:
        consequence = "SGLang builds it as a plain linear layer and skips the packed tensors"
        yield from _packed_hits(names, consequence, "error", concerns)
    else:
        yield from _packed_hits(names, "vLLM 0.24 reads it, SGLang does not", "warning")


def _packed_hits(
    names: list[str], consequence: str, severity: Severity, engines: tuple[str, ...] | None = None
) -> Iterable[Hit]:
    if names:
        yield Hit(folded(names), "stored packed", consequence, GRAFT, severity, engines, len(names))


@rule(
    "M03",
    "the dense MTP head is ignored under the draft model's names",
    cost="config",
    engines=("vllm", "sglang"),
    evidence="vllm#53387, vllm#41994; sglang#38574",
    remedy="ckpt ignore SRC add 're:^mtp.*'",
    versions="vLLM before 0.25 raises KeyError, later ones ValueError",
)
def head_ignored(case: Case) -> Iterable[Hit]:
    yield from mismatch_hits(case, "M03", lambda one: targeted(case, one), lambda one: IGNORE)


@rule(
    "M04",
    "one regex ignores the whole MTP head",
    severity="warning",
    cost="config",
    engines=("sglang",),
    evidence="sglang#35797: accept length 1.0",
    remedy="ckpt ignore SRC add 're:^mtp.*'",
    versions="SGLang hands its draft's fused layers to the matcher since 0.5.21",
)
def head_ignored_by_regex(case: Case) -> Iterable[Hit]:
    """Exact entries for shards do not reach the fused layers of SGLang's draft model before 0.5.21."""
    reached = "exact entries for the shards do not reach the draft's fused layers"
    for hit in mismatch_hits(case, "M04", lambda one: f"{reached}: '{one.blamed}'", lambda one: IGNORE):
        yield Hit(hit.place, hit.found, hit.consequence, hit.remedy, "error", hit.engines, hit.count)
    failing = {one.slot.name for rule_id in ("M03", "M04") for one in case.mismatches.get(rule_id, ())}
    exact = [name for name in _exact_shards(case) if name not in failing]
    if exact:
        consequence = "before 0.5.21 shards of fused layers are not recognised: accept length 1.0"
        yield Hit(folded(exact), "ignored by exact entries", consequence, IGNORE, count=len(exact))


def _exact_shards(case: Case) -> Iterable[str]:
    """Shards of the draft's fused layers in SGLang that an exact entry keeps dense."""
    entries = Entries(ignore_entries(case.quantization or {}))
    for resolved in case.resolved:
        if resolved.engine.name == "sglang":
            for name, one in resolved.draft.items():
                entry = entries.first(name)
                if entry and not entry.startswith(PREFIX) and one.layer.rpartition(".")[2] != name.rpartition(".")[2]:
                    yield name


@rule(
    "M05",
    "the MTP head is in files that the index names",
    engines=("vllm", "sglang"),
    evidence="vLLM filter_duplicate_safetensors_files: the index is a filter over files",
    remedy="ckpt graft-mtp SRC --base BASE",
)
def head_indexed(case: Case) -> Iterable[Hit]:
    prefix = draft_prefix(case)
    for stray in case.checkpoint.strays:
        try:
            tensors = case.checkpoint.stray_header(stray).tensors
        except UnreadableCheckpoint:
            continue
        count = sum(name.startswith(prefix) and name not in case.checkpoint.tensors for name in tensors)
        if count:
            found = f"holds {count} tensors of the MTP head and is not named in the index"
            yield Hit(stray, found, "the file is never read: 0 % acceptance", GRAFT, count=count)
