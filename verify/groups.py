"""Which config group a stored module belongs to, in compressed-tensors' own order of precedence.

This is the view of the format, not of an engine: an exact name wins over a regular expression, that over the class
name `Linear`, and of several names the alphabetically first (`match_targets` in compressed_tensors/utils/match.py).
`ignore` plays no part: a packed module was packed under some scheme, whatever the config says of it now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint.families import Family
from checkpoint.patterns import PREFIX, compiled, matches

LINEAR = "Linear"

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "W4A16": {"num_bits": 4, "group_size": 128, "symmetric": True},
    "W4A16_ASYM": {"num_bits": 4, "group_size": 128, "symmetric": False},
    "W8A16": {"num_bits": 8, "group_size": 128, "symmetric": True},
}
"""Integer weight-only presets that `config_groups` may name instead of spelling out (quantization/quant_scheme.py).

W8A16 is as of compressed-tensors 0.16; before, it was one scale per channel.
"""


@dataclass(frozen=True)
class Scheme:
    """How a config group packs a weight. `group_size` is None where one scale serves a whole row (channel)."""

    group: str
    num_bits: int
    group_size: int | None
    strategy: str
    symmetric: bool

    def scale_columns(self, columns: int) -> int:
        """How many scales a row of `columns` weights has."""
        return 1 if self.group_size is None else -(-columns // self.group_size)

    def packed_columns(self, columns: int) -> int:
        """How many 32-bit words a row of `columns` weights takes."""
        return -(-columns * self.num_bits // 32)


@dataclass(frozen=True)
class GroupTable:
    """The targets of all groups, ordered so that a module's group is found at once."""

    schemes: Mapping[str, Scheme | None]
    exact: Mapping[str, str]
    patterns: tuple[tuple[str, str], ...]
    linear: str | None
    family: Family | None
    _found: dict[str, str | None] = field(default_factory=dict, compare=False)

    def group(self, module: str) -> str | None:
        """The name of the group whose target comes first for `module`."""
        if module not in self._found:
            self._found[module] = self._search(module)
        return self._found[module]

    def scheme(self, module: str) -> Scheme | None:
        """The integer scheme of `module`; None where no group matches it or its group packs no integers."""
        group = self.group(module)
        return self.schemes[group] if group else None

    def _search(self, module: str) -> str | None:
        if module in self.exact:
            return self.exact[module]
        for target, name in self.patterns:
            if matches(target, module):
                return name
        return self.linear if self.linear and _is_linear(module, self.family) else None


def group_table(quantization: Mapping[str, Any] | None, family: Family | None) -> GroupTable:
    """The groups of a `quantization_config`, as far as they can be read; invalid regular expressions are left out."""
    groups = (quantization or {}).get("config_groups")
    groups = groups if isinstance(groups, dict) else {}
    targets = sorted((target, name) for name, group in groups.items() for target in _targets(group))
    named = [(target, name) for target, name in targets if target != LINEAR]
    return GroupTable(
        schemes={name: group_scheme(name, group) for name, group in groups.items()},
        exact={target: name for target, name in reversed(named) if not target.startswith(PREFIX)},
        patterns=tuple((target, name) for target, name in named if _is_pattern(target)),
        linear=next((name for target, name in targets if target == LINEAR), None),
        family=family,
    )


def group_scheme(name: str, group: Any) -> Scheme | None:
    """The scheme of a `config_groups` entry, with compressed-tensors' defaults; None if it is none for integers."""
    spelled_out = group.get("weights") if isinstance(group, dict) else None
    weights = PRESETS.get(name) if isinstance(group, list) else spelled_out
    if not isinstance(weights, Mapping) or weights.get("type", "int") != "int":
        return None
    bits, size = weights.get("num_bits", 8), weights.get("group_size")
    if type(bits) is not int or not 1 <= bits <= 16 or not (size is None or type(size) is int):
        return None
    grouped = size is not None and size > 0
    strategy = weights.get("strategy") or ("group" if grouped else "tensor" if size is None else "channel")
    return Scheme(name, bits, size if grouped else None, str(strategy), weights.get("symmetric", True) is not False)


def _targets(group: Any) -> Iterator[str]:
    targets = group.get("targets") if isinstance(group, dict) else group
    yield from (target for target in targets if isinstance(target, str)) if isinstance(targets, list) else ()


def _is_pattern(target: str) -> bool:
    try:
        return compiled(target) is not None
    except re.error:
        return False


def _is_linear(module: str, family: Family | None) -> bool:
    """What is packed and of no known family is taken for a Linear: nothing else is packed in practice."""
    return family is None or family.is_linear(module) or family.kind(module) is None
