"""Edits to `quantization_config`: groups appended, ignore entries kept from covering what is packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkpoint.draft import Draft
from checkpoint.errors import Problem
from checkpoint.folder import CONFIG
from checkpoint.patterns import matches
from surgery.deriving import derive_ignore
from surgery.scheme import Group
from surgery.selection import dense_linears, packed_modules

KEY = "quantization_config"


def new_config(groups: Iterable[Group], ignore: Iterable[str]) -> dict[str, Any]:
    """A `quantization_config` in the keys that compressed-tensors 0.12 to 0.20 and all three engines read."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group.entry for i, group in enumerate(groups)},
        "ignore": list(ignore),
    }


def current(draft: Draft) -> dict[str, Any] | None:
    """The draft's quantization_config, or None."""
    found = draft.config.value.get(KEY)
    return found if isinstance(found, dict) else None


def unsupported(draft: Draft) -> list[Problem]:
    """Why the draft's quantization_config cannot be edited; empty where it is a pack-quantized one."""
    config = current(draft)
    if config is None:
        remedy = "Quantize the body first: ckpt quantize"
        return [Problem("not-quantized", f"no {KEY}", CONFIG, remedy=remedy)]
    problems = []
    for key, expected in (("quant_method", "compressed-tensors"), ("format", "pack-quantized")):
        if config.get(key) != expected:
            found = f"{KEY}.{key} is {config.get(key)!r}"
            problems.append(Problem("format-unsupported", found, CONFIG, expected=repr(expected)))
    if not isinstance(config.get("config_groups"), dict) or not isinstance(ignore_list(config), list):
        problems.append(Problem("format-unsupported", f"{KEY} has no usable config_groups and ignore", CONFIG))
    return problems


def ignore_list(config: Mapping[str, Any]) -> list[str]:
    """The ignore entries; null, which compressed-tensors accepts, is none."""
    return list(config.get("ignore") or [])


def with_quantization(draft: Draft, config: Mapping[str, Any]) -> Draft:
    return draft.with_config({**draft.config.value, KEY: dict(config)})


def with_ignore(draft: Draft, entries: Iterable[str]) -> Draft:
    """The draft whose ignore list is `entries`, each once."""
    config = current(draft) or {}
    return with_quantization(draft, {**config, "ignore": list(dict.fromkeys(entries))})


def with_group(draft: Draft, group: Group) -> Draft:
    """The draft with one more config group, `group_N` behind the last; groups without a format are given theirs."""
    config = current(draft) or {}
    groups = {name: _with_format(entry) for name, entry in config["config_groups"].items()}
    number = len(groups)
    while f"group_{number}" in groups:
        number += 1
    return with_quantization(draft, {**config, "config_groups": {**groups, f"group_{number}": group.entry}})


def without_cover(draft: Draft, modules: Iterable[str]) -> Draft:
    """The draft whose ignore list covers none of `modules`, and still all that it covered beside them.

    An entry that covers more than `modules` is replaced, in its place, by entries for the rest.
    """
    config, wanted = current(draft) or {}, set(modules)
    before = ignore_list(config)
    dense = [module for module in dense_linears(draft) if module not in wanted]
    packed = [*packed_modules(draft), *wanted]
    kept = [entry for entry in before if not any(matches(entry, module) for module in wanted)]
    uncovered = [module for module in dense if not any(matches(entry, module) for entry in kept)]
    entries: list[str] = []
    for entry in before:
        if entry in kept:
            entries.append(entry)
            continue
        rest = [module for module in uncovered if matches(entry, module)]
        entries += derive_ignore(rest, packed) if rest else []
    return with_ignore(draft, entries)


def _with_format(entry: Any) -> Any:
    """null means the top-level format, which some engines stop reading once groups differ: say it."""
    return {**entry, "format": entry.get("format") or "pack-quantized"} if isinstance(entry, dict) else entry
