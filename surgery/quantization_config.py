"""Edits to `quantization_config`: groups appended, ignore entries kept from covering what is packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkpoint.draft import Draft
from checkpoint.errors import Problem
from checkpoint.folder import CONFIG
from checkpoint.patterns import matches, pattern_problems
from surgery.deriving import derive_ignore
from surgery.scheme import Group, Scheme
from surgery.selection import dense_linears, packed_modules

KEY = "quantization_config"

_PLACES = (("", KEY), ("", "compression_config"), ("text_config", KEY))
"""(section, key) where vLLM's `get_quant_config` finds a quantization, first one first."""


def new_config(groups: Iterable[Group], ignore: Iterable[str]) -> dict[str, Any]:
    """A `quantization_config` in the keys that compressed-tensors 0.12 to 0.20 and all three engines read."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group.entry for i, group in enumerate(groups)},
        "ignore": list(ignore),
    }


def tidied(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` in the order that `new_config` writes, its groups' schemes without keys that say nothing.

    Exporters sort the keys and spell out nulls; `scale_dtype` and `zp_dtype`, null or not, make compressed-tensors up
    to 0.12 refuse the file (vllm-project/llm-compressor#2234).
    """
    model = new_config((), ())
    group_model = Group((), Scheme()).entry
    tidy = _ordered(config, model)
    if isinstance(tidy.get("config_groups"), dict):
        tidy["config_groups"] = {
            name: _tidied_group(entry, group_model) if isinstance(entry, dict) else entry
            for name, entry in tidy["config_groups"].items()
        }
    return tidy


def _tidied_group(group: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    tidy = _ordered(group, model)
    if isinstance(tidy.get("weights"), dict):
        stated = {key: value for key, value in tidy["weights"].items() if value is not None and value != {}}
        tidy["weights"] = _ordered(stated, model["weights"])
    return tidy


def _ordered(found: Mapping[str, Any], model: Iterable[str]) -> dict[str, Any]:
    """`found` with the keys of `model` first, in its order."""
    first = {key: found[key] for key in model if key in found}
    return first | {key: value for key, value in found.items() if key not in first}


def current(draft: Draft) -> dict[str, Any] | None:
    """The draft's quantization_config, or None."""
    found = draft.config.value.get(KEY)
    return found if isinstance(found, dict) else None


def quantized_by(config: Mapping[str, Any]) -> str | None:
    """The method of the quantization that an engine would find in a config.json, or None."""
    for section, key in _PLACES:
        inside = config.get(section) if section else config
        found = inside.get(key) if isinstance(inside, Mapping) else None
        if found is not None:
            return str(found.get("quant_method", "unknown")) if isinstance(found, Mapping) else "unknown"
    return None


def unsupported(draft: Draft) -> list[Problem]:
    """Why the draft's quantization_config cannot be edited; empty where it is a pack-quantized one."""
    config = current(draft)
    if config is None:
        remedy = "Quantize the body first: ckpt quantize"
        # beside an earlier refusal this may be its consequence alone; such a draft is never written
        return [] if draft.problems else [Problem("not-quantized", f"no {KEY}", CONFIG, remedy=remedy)]
    problems = []
    for key, expected in (("quant_method", "compressed-tensors"), ("format", "pack-quantized")):
        if config.get(key) != expected:
            found = f"{KEY}.{key} is {config.get(key)!r}"
            problems.append(Problem("format-unsupported", found, CONFIG, expected=repr(expected)))
    groups, ignore = config.get("config_groups"), config.get("ignore")
    if not isinstance(groups, dict):
        found = f"{KEY}.config_groups is {groups!r}"
        problems.append(Problem("format-unsupported", found, CONFIG, expected="an object"))
    if ignore is not None and not (isinstance(ignore, list) and all(isinstance(entry, str) for entry in ignore)):
        problems.append(
            Problem("format-unsupported", f"{KEY}.ignore is {ignore!r}", CONFIG, expected="a list of names")
        )
    return problems


def ignore_list(draft: Draft) -> list[str]:
    """The ignore entries; null, which compressed-tensors accepts, is none."""
    found = (current(draft) or {}).get("ignore")
    return list(found) if isinstance(found, list) else []


def invalid_entries(draft: Draft) -> list[Problem]:
    """Ignore entries that are no regular expressions, so that nothing can be said about what they cover."""
    return pattern_problems(ignore_list(draft), CONFIG)


def targets_of(draft: Draft) -> list[tuple[str, str]]:
    """(group, target) for every target of the draft's config groups, in their order."""
    groups = (current(draft) or {}).get("config_groups")
    found: list[tuple[str, str]] = []
    for name, entry in groups.items() if isinstance(groups, dict) else ():
        # compressed-tensors also takes the name of a preset with its targets: {"W4A16": ["Linear"]}
        targets = entry.get("targets") if isinstance(entry, dict) else entry
        if isinstance(targets, list):
            found += [(name, target) for target in targets if isinstance(target, str)]
    return found


def with_quantization(draft: Draft, config: Mapping[str, Any]) -> Draft:
    return draft.with_config({**draft.config.value, KEY: dict(config)})


def with_ignore(draft: Draft, entries: Iterable[str]) -> Draft:
    """The draft whose ignore list is `entries`, each once; unchanged where it is not quantized."""
    config = current(draft)
    if config is None:
        return draft
    return with_quantization(draft, {**config, "ignore": list(dict.fromkeys(entries))})


def with_group(draft: Draft, group: Group) -> Draft:
    """The draft with one more config group, `group_N` behind the last; groups without a format are given theirs.

    Unchanged where it is not quantized.
    """
    config = current(draft)
    if config is None:
        return draft
    groups = {name: _with_format(entry) for name, entry in config["config_groups"].items()}
    number = len(groups)
    while f"group_{number}" in groups:
        number += 1
    return with_quantization(draft, {**config, "config_groups": {**groups, f"group_{number}": group.entry}})


def without_cover(draft: Draft, modules: Iterable[str]) -> Draft:
    """The draft whose ignore list covers none of `modules`, and still all that it covered beside them.

    An entry that covers more than `modules` is replaced, in its place, by entries for the rest.
    """
    wanted = set(modules)
    dense = [module for module in dense_linears(draft) if module not in wanted]
    packed = [*packed_modules(draft), *wanted]
    before = ignore_list(draft)
    kept = [entry for entry in before if not any(matches(entry, module) for module in wanted)]
    uncovered = [module for module in dense if not any(matches(entry, module) for entry in kept)]
    entries: list[str] = []
    for entry in before:
        if entry in kept:
            entries.append(entry)
            continue
        entries += derive_ignore([module for module in uncovered if matches(entry, module)], packed)
    return with_ignore(draft, entries)


def _with_format(entry: Any) -> Any:
    """null means the top-level format, which some engines stop reading once groups differ: say it."""
    return {**entry, "format": entry.get("format") or "pack-quantized"} if isinstance(entry, dict) else entry
