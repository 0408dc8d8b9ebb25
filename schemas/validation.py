"""Judging a document by a schema: every fault, each with a readable place and a message that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from checkpoint.errors import CkptError, Problem, escape
from schemas.catalogue import load, names

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from referencing import Registry

LONGEST_VALUE = 100
"""Characters of the document that a message may quote."""

EXPLAINED = frozenset({"not", "contains"})
"""Keywords whose stock message says less than the description beside them."""

UNEXPLAINED = frozenset({"required", "minProperties"})
"""Keywords about what an object holds, which the description of the object itself does not explain."""

PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*")


class BadSchema(CkptError):
    """A schema that is itself invalid, or refers to one that is not there."""

    headline = "the schema cannot be used"


@dataclass(frozen=True)
class SchemaFault:
    """One fault of a document: where (`config_groups.group_0.weights.num_bits`; `` for the whole), and what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def validate(
    document: Any, schema: str | Mapping[str, Any], *, keywords: Mapping[str, Any] | None = None
) -> list[SchemaFault]:
    """Every fault of `document` under a schema given by name or as itself, ordered by place; empty if it conforms.

    `keywords` take the place of jsonschema's own. What a stranger wrote is for `schemas.apart`: nothing limits the time
    here. Raises BadSchema if the schema is invalid, KeyError if there is none of that name.
    """
    from referencing.exceptions import Unresolvable

    validator = _by_name(schema) if isinstance(schema, str) else _validator(schema, keywords)
    try:
        errors = sorted(validator.iter_errors(document), key=lambda error: [str(part) for part in error.absolute_path])
    except Unresolvable as error:
        problem = Problem("schema-reference", f"refers to {error.ref!r}", expected=f"one of {', '.join(names())}")
        raise BadSchema(problem) from error
    return list(dict.fromkeys(_fault(leaf) for error in errors for leaf in _leaves(error)))


@cache
def _by_name(name: str) -> Validator:
    return _validator(load(name))


def _validator(schema: Mapping[str, Any], keywords: Mapping[str, Any] | None = None) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend

    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        raise BadSchema(Problem("schema-invalid", error.message, tensor=readable_path(error.absolute_path))) from error
    kind = extend(Draft202012Validator, keywords) if keywords else Draft202012Validator  # type: ignore[no-untyped-call]
    validator: Validator = kind(dict(schema), registry=_registry())
    return validator


@lru_cache(maxsize=1)
def _registry() -> Registry[Any]:
    """All our schemas under their `$id`; nothing is ever fetched."""
    from referencing import Registry, Resource

    empty: Registry[Any] = Registry()
    return empty.with_resources((load(name)["$id"], Resource.from_contents(load(name))) for name in names())


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """The error itself, or, where alternatives failed, those of the alternative that came closest."""
    if error.validator not in ("anyOf", "oneOf") or not error.context:
        yield error
        return
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    right_type = [found for found in branches.values() if not any(_is_wrong_type(inner, error) for inner in found)]
    if len(right_type) == 1:
        for inner in right_type[0]:
            yield from _leaves(inner)
    else:
        yield error


def _is_wrong_type(inner: ValidationError, outer: ValidationError) -> bool:
    return inner.validator in ("type", "const", "enum") and inner.absolute_path == outer.absolute_path


def _fault(error: ValidationError) -> SchemaFault:
    return SchemaFault(readable_path(error.absolute_path), _message(error))


def _message(error: ValidationError) -> str:
    """jsonschema's message, with long values cut, and the schema's own explanation where it has one."""
    explanation = error.schema.get("description") if isinstance(error.schema, Mapping) else None
    if explanation and error.validator in EXPLAINED:
        return str(explanation)
    message = _stock_message(error)
    if explanation and error.validator == "pattern":
        return f"{_short(error.instance)} is not {explanation}"
    return f"{message} ({explanation})" if explanation and error.validator not in UNEXPLAINED else message


def _stock_message(error: ValidationError) -> str:
    if error.validator == "const":
        return f"{_short(error.instance)} is not {error.validator_value!r}"
    return error.message.replace(repr(error.instance), _short(error.instance))


def _short(value: Any) -> str:
    quoted = repr(value)
    return quoted if len(quoted) <= LONGEST_VALUE else f"{quoted[:LONGEST_VALUE]}..."


def readable_path(parts: Any) -> str:
    """A place in a document: `a.b[3].c`, keys that are no plain words in quotes."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return escape(text.replace("\n", "\\n"))
