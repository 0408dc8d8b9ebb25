"""Many names that differ only in numbers, written as one pattern that a person can read.

`model.layers.{0-2,4-6}.mlp.experts.{0-255}.gate_proj` stands for 6 * 256 names. `fold` and `unfold` are inverse.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)

Numbers = tuple[int, ...]
Template = tuple[str | None, ...]

RANGES = re.compile(r"\{[0-9,-]+\}")
LITERAL_BRACES = re.compile(r"\{+[0-9,-]+\}+")
LONGEST_NUMBER = 9


@dataclass(frozen=True)
class Folded(Generic[State]):
    """The names that `pattern` unfolds to, `count` of them, all in the same `state`."""

    pattern: str
    state: State
    count: int


def fold(items: Iterable[tuple[str, State]]) -> list[Folded[State]]:
    """Fold (name, state) pairs: equal state and equal name but for numbers share an entry, in first-seen order.

    Numbers that form a product of sets become one entry; others are grouped by the first number's equal remainder, and
    so on to the last. A pair given twice counts twice.
    """
    groups: dict[tuple[Template, State], list[dict[Numbers, int]]] = {}
    for position, (name, state) in enumerate(items):
        template, numbers = _split(name)
        rounds = groups.setdefault((template, state), [{}])
        _place(rounds, numbers, position)
    entries = [
        (min(map(seen.__getitem__, product(*sets))), Folded(_write(template, sets), state, _size(sets)))
        for (template, state), rounds in groups.items()
        for seen in rounds
        for sets in _products(seen)
    ]
    return [entry for _, entry in sorted(entries, key=lambda pair: pair[0])]


def unfold(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, the last number running fastest."""
    for parts in product(*(_read(part) for part in pattern.split("."))):
        yield ".".join(parts)


def _split(name: str) -> tuple[Template, Numbers]:
    """The components of a name with None for each number, and the numbers."""
    template: list[str | None] = []
    numbers: list[int] = []
    for part in name.split("."):
        number = _number(part)
        if number is None:
            template.append(part)
        else:
            template.append(None)
            numbers.append(number)
    return tuple(template), tuple(numbers)


@lru_cache(maxsize=8192)
def _number(part: str) -> int | None:
    """The component as a number if it reads back as itself: no leading zero, no digits of other scripts."""
    plain = part.isdecimal() and part.isascii() and len(part) <= LONGEST_NUMBER and (part[0] != "0" or part == "0")
    return int(part) if plain else None


def _place(rounds: list[dict[Numbers, int]], numbers: Numbers, position: int) -> None:
    """Note `numbers` in the first round that does not hold them yet; a second round exists for repeated pairs only."""
    for seen in rounds:
        if numbers not in seen:
            seen[numbers] = position
            return
    rounds.append({numbers: position})


def _products(tuples: Iterable[Numbers]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Products of sets that partition `tuples`, which are distinct and equally long."""
    remainders: dict[int, set[Numbers]] = {}
    for numbers in tuples:
        if not numbers:
            yield ()
            return
        remainders.setdefault(numbers[0], set()).add(numbers[1:])
    alike: dict[frozenset[Numbers], list[int]] = {}
    for first, rest in remainders.items():
        alike.setdefault(frozenset(rest), []).append(first)
    for rest_alike, firsts in alike.items():
        for sets in _products(rest_alike):
            yield tuple(sorted(firsts)), *sets


def _size(sets: tuple[tuple[int, ...], ...]) -> int:
    size = 1
    for numbers in sets:
        size *= len(numbers)
    return size


def _write(template: Template, sets: tuple[tuple[int, ...], ...]) -> str:
    remaining = iter(sets)
    return ".".join(_ranges(next(remaining)) if part is None else _escaped(part) for part in template)


def _escaped(part: str) -> str:
    """A component that looks like ranges gets a second pair of braces."""
    return f"{{{part}}}" if LITERAL_BRACES.fullmatch(part) else part


def _ranges(numbers: Collection[int]) -> str:
    """`5` for one number, `{0-2,4}` for several; `numbers` ascend."""
    if len(numbers) == 1:
        return str(next(iter(numbers)))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "{" + ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans) + "}"


def _read(part: str) -> Iterable[str]:
    if not RANGES.fullmatch(part):
        return (part[1:-1] if LITERAL_BRACES.fullmatch(part) else part,)
    spans = (span.partition("-") for span in part[1:-1].split(","))
    return (str(number) for low, _, high in spans for number in range(int(low), int(high or low) + 1))
