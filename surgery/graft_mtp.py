"""The multi-token-prediction head, back from the base: byte for byte, with index, config and ignore made to agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint import CONFIG, Checkpoint, Problem, TensorRef
from checkpoint.draft import Draft, Stored
from checkpoint.families import Family, MtpInfo, SpecError, find_family
from checkpoint.patterns import matches
from surgery.deriving import MTP_ENTRIES
from surgery.graft import free_label
from surgery.quantization_config import current, ignore_list, unsupported, with_ignore

MTP_SHARD = "model-mtp.safetensors"
_UNKNOWN = MtpInfo("mtp.", "mtp_num_hidden_layers")


def graft_mtp(draft: Draft, base: Checkpoint) -> Draft:
    """Replace whatever the draft has of the MTP head by the base's, in the layout of the base.

    Lineage is the caller's to check (`lineage_problems`): it needs reading, which operations do not.
    """
    family = find_family(base.config)
    mtp = (family.mtp if family else None) or _UNKNOWN
    head = {name: ref for name, ref in base.tensors.items() if name.startswith(mtp.prefix)}
    problems = [*_base_problems(base, head, mtp, family), *_config_problems(draft, base, mtp)]
    if current(draft) is not None:
        problems += unsupported(draft)
    if problems:
        return draft.refusing(problems)
    dropped = [name for name in draft.tensors if name.startswith(mtp.prefix)]
    if _unchanged(draft, head, dropped):
        grafted = draft
    else:
        shard = _shard_for(draft, dropped)
        grafted = draft.without(dropped).added({name: Stored(ref) for name, ref in head.items()}, shard)
    grafted = _with_declared_layers(grafted, base, mtp)
    if current(draft) is not None:
        grafted = _with_mtp_ignored(grafted, mtp)
    total = sum(ref.nbytes for ref in head.values())
    return grafted.noting(
        "graft-mtp", f"{len(head)} tensors, {total:,} bytes, from {base.root}; {len(dropped)} dropped"
    )


def _base_problems(
    base: Checkpoint, head: Mapping[str, TensorRef], mtp: MtpInfo, family: Family | None
) -> list[Problem]:
    if not head:
        remedy = "Give the base that ships the head as --base"
        return [Problem("mtp-absent", f"holds no {mtp.prefix}* tensor", str(base.root), remedy=remedy)]
    problems = [
        Problem("mtp-quantized", f"dtype {ref.dtype}", ref.path.name, name, "BF16, F16 or F32", "Give the BF16 base")
        for name, ref in head.items()
        if ref.dtype not in ("BF16", "F16", "F32")
    ]
    return problems + (_spec_problems(base, head, family) if family else [])


def _spec_problems(base: Checkpoint, head: Mapping[str, TensorRef], family: Family) -> list[Problem]:
    """Where the base's head is not what the base's own config calls for."""
    try:
        spec = family.spec(base.config)
    except SpecError as error:
        return [Problem("config-incomplete", str(error), f"{base.root}/{CONFIG}")]
    expected = spec.tensors(spec.choose_layouts({name.removesuffix(".weight") for name in base.tensors}))
    wanted = {name: tensor for name, tensor in expected.items() if tensor.scope == "mtp"}
    problems = []
    for name, tensor in wanted.items():
        ref = head.get(name)
        if ref is None and not tensor.optional:
            problems.append(Problem("mtp-incomplete", "missing from the base", str(base.root), name))
        elif ref is not None and ref.shape != tensor.shape:
            expected_shape = f"{list(tensor.shape)} by its config"
            problems.append(Problem("mtp-shape", f"shape {list(ref.shape)}", ref.path.name, name, expected_shape))
    unknown = [name for name in head if name not in wanted]
    problems += [Problem("mtp-unknown", "its config calls for no such tensor", head[n].path.name, n) for n in unknown]
    return problems


def _config_problems(draft: Draft, base: Checkpoint, mtp: MtpInfo) -> list[Problem]:
    """The config of the export must describe the model that the base's head was trained for."""
    mine, theirs = _text(draft.config.value), _text(base.config)
    problems = []
    for key in ("hidden_size", "num_experts", "moe_intermediate_size", "vocab_size", "head_dim"):
        if mine.get(key) != theirs.get(key):
            found, expected = f"{key} is {mine.get(key)!r}", f"{theirs.get(key)!r}, as in the base"
            problems.append(Problem("mtp-config", found, CONFIG, expected=expected))
    return problems


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    section = config.get("text_config")
    return section if isinstance(section, Mapping) else config


def _unchanged(draft: Draft, head: Mapping[str, TensorRef], dropped: list[str]) -> bool:
    """Does the draft take the very bytes already?"""
    return set(dropped) == head.keys() and all(draft.tensors[name] == Stored(ref) for name, ref in head.items())


def _shard_for(draft: Draft, dropped: list[str]) -> str:
    """A shard that held nothing but the old head keeps its name, so that the set needs no new numbers."""
    gone = set(dropped)
    homes = dict.fromkeys(draft.placement[name] for name in dropped)
    others = {label for name, label in draft.placement.items() if name not in gone}
    emptied = [label for label in homes if label not in others]
    return emptied[0] if emptied else free_label(draft, MTP_SHARD)


def _with_declared_layers(draft: Draft, base: Checkpoint, mtp: MtpInfo) -> Draft:
    """The config says how many MTP layers there are, as the base's does."""
    declared = _text(base.config).get(mtp.layers_key)
    config = draft.config.value
    if declared is None or _text(config).get(mtp.layers_key) == declared:
        return draft
    if isinstance(config.get("text_config"), dict):
        return draft.with_config({**config, "text_config": {**config["text_config"], mtp.layers_key: declared}})
    return draft.with_config({**config, mtp.layers_key: declared})


def _with_mtp_ignored(draft: Draft, mtp: MtpInfo) -> Draft:
    """Single names of MTP modules give way to the two patterns that every engine honours."""
    entries = ignore_list(current(draft) or {})
    kept = [entry for entry in entries if entry in MTP_ENTRIES or not _is_mtp_only(entry, mtp)]
    return with_ignore(draft, [*kept, *(entry for entry in MTP_ENTRIES if entry not in kept)])


def _is_mtp_only(entry: str, mtp: MtpInfo) -> bool:
    """A literal name inside the MTP head; regular expressions are left as their author wrote them."""
    return not entry.startswith("re:") and (entry.startswith(mtp.prefix) or matches(entry, mtp.prefix.rstrip(".")))
