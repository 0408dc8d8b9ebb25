"""The multi-token-prediction head, back from the base: byte for byte, with index, config and ignore made to agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from checkpoint import CONFIG, Checkpoint, Problem, TensorRef
from checkpoint.draft import Draft
from checkpoint.dtypes import FLOATS
from checkpoint.families import Family, MtpInfo, SpecError, find_family
from checkpoint.folding import fold
from surgery.graft import free_label
from surgery.mtp import MTP_ENTRIES, mtp_of
from surgery.quantization_config import current, ignore_list, unsupported, with_ignore

MTP_SHARD = "model-mtp.safetensors"

_SIZES = ("hidden_size", "num_experts", "moe_intermediate_size", "vocab_size", "head_dim")


def graft_mtp(draft: Draft, base: Checkpoint) -> Draft:
    """Replace whatever the draft has of the MTP head by the base's, in the layout of the base.

    Lineage is the caller's to check (`lineage_problems`): it needs reading, which operations do not.
    """
    mtp = mtp_of(base.config)
    head = {name: ref for name, ref in base.tensors.items() if name.startswith(mtp.prefix)}
    problems = [*_base_problems(base, head, mtp), *_config_problems(draft, base)]
    if current(draft) is not None:
        problems += unsupported(draft)
    if problems:
        return draft.refusing(problems)
    dropped = [name for name in draft.tensors if name.startswith(mtp.prefix)]
    grafted = draft
    if not _unchanged(draft, head, dropped):
        grafted = draft.without(dropped).added(head, _shard_for(draft, dropped))
    grafted = _with_declared_layers(grafted, base, mtp)
    if current(draft) is not None:
        grafted = _with_mtp_ignored(grafted, mtp)
    total = sum(ref.nbytes for ref in head.values())
    summary = f"{len(head)} tensors, {total:,} bytes, from {base.root}; {len(dropped)} dropped"
    parameters = {"prefix": mtp.prefix, "taken": len(head), "dropped": len(dropped)}
    return grafted.noting("graft-mtp", summary, parameters, sources={"base": base})


def _base_problems(base: Checkpoint, head: Mapping[str, TensorRef], mtp: MtpInfo) -> Iterator[Problem]:
    if not head:
        remedy = "Give the base that ships the head as --base"
        yield Problem("mtp-absent", f"holds no {mtp.prefix}* tensor", str(base.root), remedy=remedy)
        return
    quantized = [(name, ref.dtype) for name, ref in head.items() if ref.dtype not in FLOATS]
    for folded in fold(quantized):
        found, expected = f"dtype {folded.state}", "BF16, F16 or F32"
        yield Problem("mtp-quantized", found, str(base.root), folded.pattern, expected, "Give the unquantized base")
    family = find_family(base.config)
    if family and not quantized:
        yield from _spec_problems(base, head, family)


def _spec_problems(base: Checkpoint, head: Mapping[str, TensorRef], family: Family) -> Iterable[Problem]:
    """Where the base's head is not what the base's own config calls for."""
    try:
        spec = family.spec(base.config)
    except SpecError as error:
        return [replace(problem, file=f"{base.root}/{CONFIG}") for problem in error.problems]
    tensors = spec.tensors(spec.choose_layouts({name.removesuffix(".weight") for name in base.tensors}))
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.scope == "mtp"}
    faults: list[tuple[str, tuple[str, str, str]]] = []
    for name, tensor in wanted.items():
        ref = head.get(name)
        if ref is None and not tensor.optional:
            faults.append((name, ("mtp-incomplete", "missing", "what its config calls for")))
        elif ref is not None and ref.shape != tensor.shape:
            faults.append((name, ("mtp-shape", f"shape {list(ref.shape)}", f"{list(tensor.shape)} by its config")))
    faults += [(name, ("mtp-unknown", "its config calls for no such tensor", "")) for name in head.keys() - wanted]
    remedy = "Give the release as it was published"
    return [
        Problem(code, found, str(base.root), folded.pattern, expected, remedy)
        for folded in fold(sorted(faults))
        for code, found, expected in (folded.state,)
    ]


def _config_problems(draft: Draft, base: Checkpoint) -> Iterator[Problem]:
    """The config of the export must describe the model that the base's head was trained for."""
    mine, theirs = _text(draft.config.value), _text(base.config)
    for key in _SIZES:
        if mine.get(key) != theirs.get(key):
            found, expected = f"{key} is {mine.get(key)!r}", f"{theirs.get(key)!r}, as in the base"
            yield Problem("mtp-config", found, CONFIG, expected=expected, remedy="Give the base that it descends from")


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    section = config.get("text_config")
    return section if isinstance(section, Mapping) else config


def _unchanged(draft: Draft, head: Mapping[str, TensorRef], dropped: list[str]) -> bool:
    """Does the draft take the very bytes already?"""
    return set(dropped) == head.keys() and all(draft.tensors[name] == ref for name, ref in head.items())


def _shard_for(draft: Draft, dropped: list[str]) -> str:
    """A shard that held nothing but the old head keeps its name, so that the set needs no new numbers."""
    gone = set(dropped)
    homes = dict.fromkeys(draft.shards_of(dropped).values())
    others = set(draft.shards_of(name for name in draft.tensors if name not in gone).values()) if gone else set()
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
    entries = [entry for entry in ignore_list(draft) if not _is_mtp_name(entry, mtp)]
    return with_ignore(draft, [*entries, *(entry for entry in MTP_ENTRIES if entry not in entries)])


def _is_mtp_name(entry: str, mtp: MtpInfo) -> bool:
    """A whole name inside the MTP head, or its own; regular expressions are left as their author wrote them."""
    return f"{entry}.".startswith(mtp.prefix)
