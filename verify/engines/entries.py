"""The lists of a `quantization_config`, prepared for many look-ups: ignore entries, and targets with their groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checkpoint.matching import Matcher
from checkpoint.patterns import compiled


class Entries:
    """Entries in their order. Looking a name up costs one look into a dictionary and one match for each regex."""

    def __init__(self, entries: Iterable[str], renamed: Mapping[str, str] | None = None) -> None:
        """`renamed` gives the engine's spelling of an entry where it differs; invalid regexes cover nothing.

        Of entries that the engine spells alike, the last counts, in the place of the first: a dictionary's order.
        """
        self._position: dict[str, int] = {}
        self._spelling: list[str] = []
        self._patterns: list[tuple[int, Matcher]] = []
        for position, entry in enumerate(entries):
            self._spelling.append(entry)
            pattern = _pattern(entry)
            if pattern is not None:
                self._patterns.append((position, pattern))
            elif not entry.startswith("re:"):
                first = self._position.setdefault((renamed or {}).get(entry, entry), position)
                self._spelling[first] = entry

    def first(self, name: str) -> str | None:
        """The first entry, in the config's spelling, that is `name` or whose regex matches at its start."""
        exact = self._position.get(name)
        for position, pattern in self._patterns:
            if exact is not None and exact < position:
                break
            if pattern.match(name):
                return self._spelling[position]
        return None if exact is None else self._spelling[exact]

    def first_by_suffix(self, name: str) -> str | None:
        """As `first`, with exact entries also naming a module by the end of its dotted name."""
        found = self.first(name)
        while found is None and "." in name:
            name = name.partition(".")[2]
            exact = self._position.get(name)
            found = None if exact is None else self._spelling[exact]
        return found

    def __contains__(self, name: object) -> bool:
        """Is `name` itself an entry?"""
        return name in self._position


def is_readable(quantization: Mapping[str, Any]) -> bool:
    """Are the lists of the right types? Of any other an engine makes nonsense or an error; the schema tells of it."""
    ignore, groups = quantization.get("ignore"), quantization.get("config_groups")
    if not isinstance(groups, dict) or not (ignore is None or _is_list_of_names(ignore)):
        return False
    lists = (group.get("targets") if isinstance(group, dict) else group for group in groups.values())
    return all(_is_list_of_names(targets) for targets in lists)


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def ignore_entries(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    """The ignore list; what is no string is left to the schema."""
    ignore = quantization.get("ignore")
    return tuple(entry for entry in ignore if isinstance(entry, str)) if isinstance(ignore, list) else ()


def config_groups(quantization: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The groups by name; of a preset (`"W4A16": ["Linear"]`) only the targets are known."""
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict):
        return {}
    spelled = {name: {"targets": group} if isinstance(group, list) else group for name, group in groups.items()}
    return {name: group for name, group in spelled.items() if isinstance(group, dict)}


def group_targets(group: Mapping[str, Any]) -> tuple[str, ...]:
    targets = group.get("targets")
    return tuple(target for target in targets if isinstance(target, str)) if isinstance(targets, list) else ()


def target_groups(quantization: Mapping[str, Any]) -> dict[str, str]:
    """Target -> group, in config order; of two groups with the same target the later one counts, as in all engines."""
    return dict(_target_groups(quantization))


def _target_groups(quantization: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, group in config_groups(quantization).items():
        for target in group_targets(group):
            yield target, name


def _pattern(entry: str) -> Matcher | None:
    try:
        return compiled(entry)
    except re.error:
        return None
