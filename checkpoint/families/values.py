"""What a config.json says, read the way a family file asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint.dtypes import LIMIT
from checkpoint.errors import Problem, UnreadableCheckpoint, brief
from checkpoint.families.expression import Expression, parse

Default = int | bool | str
VISION = "vision."
# No model comes near it; a config that asks for more is broken or hostile, and its tensor list would fill the memory.
MOST_REPEATS = 16384
MOST_TENSORS = 500_000
"""Of layers and experts together. Kimi K2 has 70,000; each that is called for and not there costs the judging 20 us."""


class SpecError(UnreadableCheckpoint, ValueError):
    """A config.json from which no tensor list can be derived: one problem for every key that is missing or wrong."""

    headline = "config.json does not describe the model"


@dataclass(frozen=True)
class Values:
    """The text section, vision section and top level of one config, with the family's defaults.

    A key that is missing or not an integer is noted in `faults`, and 1 stands in for it so that reading can go on;
    `check` then raises for all of them together.
    """

    top: Mapping[str, Any]
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    defaults: Mapping[str, Default]
    faults: dict[str, str] = field(default_factory=dict)
    _known: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def integer(self, name: str) -> int:
        """The integer under `name` in the text section, or under `vision.NAME` in the vision section."""
        value = self.vision.get(name.removeprefix(VISION)) if name.startswith(VISION) else self.text.get(name)
        if value is None and name in self.defaults:
            value = self.defaults[name]
            if isinstance(value, str):
                return self._default(name, value)
        if isinstance(value, int) and abs(value) < LIMIT:
            return int(value)
        self.faults[name] = "is missing" if value is None else f"is {brief(value)}, not an integer of 64 bits"
        return 1

    def evaluate(self, expression: Expression) -> int:
        """The value of `expression`; a division by zero is a fault like a missing key."""
        if expression.text not in self._known:
            self._known[expression.text] = self._evaluated(expression)
        return self._known[expression.text]

    def _evaluated(self, expression: Expression) -> int:
        try:
            return expression.evaluate(self.integer)
        except ZeroDivisionError:
            self.faults[expression.text] = "divides by zero"
            return 1

    def count(self, expression: Expression) -> int:
        """How many layers, experts or blocks there are; a number no model has is a fault."""
        value = self.evaluate(expression)
        if 0 <= value <= MOST_REPEATS:
            return value
        self.faults[expression.text] = f"is {value}, not a number from 0 to {MOST_REPEATS}"
        return 0

    def sequence(self, name: str, kind: type) -> list[Any] | None:
        """The list under `name` in the text section, None if there is none; items of another type are a fault."""
        value = self.text.get(name)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(item, kind) for item in value):
            return value
        self.faults[name] = f"is {brief(value)}, not a list of {kind.__name__}"
        return None

    def holds(self, name: str) -> bool:
        """Whether a flag, number or section is set: top level first, as transformers reads `tie_word_embeddings`."""
        for section in (self.top, self.text):
            if section.get(name) is not None:
                return bool(section[name])
        default = self.defaults.get(name, False)
        return bool(self.integer(name) if isinstance(default, str) else default)

    def check(self, family: str) -> None:
        """Raise SpecError if anything asked for was missing or wrong."""
        if self.faults:
            raise SpecError(
                Problem("spec", f"{name} {fault}", file="config.json", expected=f"what a config of {family} states")
                for name, fault in sorted(self.faults.items())
            )

    def _default(self, name: str, text: str) -> int:
        before = set(self.faults)
        value = self.evaluate(parse(text))
        if set(self.faults) - before:
            self.faults[name] = f"is missing, and so is what it defaults to ({text})"
        return value
