"""YAML as data: no tags, no aliases, no key twice. What a person reads in the file is what it says."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from checkpoint.document import MOST_DIGITS


class NotPlain(ValueError):
    """The text is no YAML, or uses more of it than plain data needs."""


class ShortNumbers(yaml.SafeLoader):
    """SafeLoader, without whole numbers that take longer to compute than to read: `1:59:59:...` is one to base 60."""

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MOST_DIGITS:
            found = f"a number of {len(node.value):,} characters"
            raise yaml.constructor.ConstructorError(None, None, found, node.start_mark)
        return int(super().construct_yaml_int(node))


ShortNumbers.add_constructor("tag:yaml.org,2002:int", ShortNumbers.construct_yaml_int)


class _Loader(ShortNumbers):
    """As above, and without what takes the last of two equal keys without a word or lets aliases multiply a value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases are not taken", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                found = f"the key {key!r} is no text"
                raise yaml.constructor.ConstructorError(None, None, found, key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """What `text` says. Raises NotPlain with the line."""
    try:
        document = yaml.load(text, _Loader)
        _refuse_others(document)
        return document
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise NotPlain(f"{line}{error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise NotPlain(str(error)) from error


def _refuse_others(value: Any) -> None:
    """Raise ValueError for dates, sets, bytes and the like."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _refuse_others(part)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ValueError(f"{value!r} is neither text nor a number; put it in quotes")
