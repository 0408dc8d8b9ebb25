"""The documents against their JSON Schemas: the layout against a profile, the index, the quantization_config."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from checkpoint import CONFIG, INDEX, CkptError, Problem
from checkpoint.wholefile import read_whole
from verify.case import Case
from verify.registry import Hit, rule

PROFILES = "profiles/"
MAX_SCHEMA = 16 * 1024 * 1024
"""Bytes; a schema is some pages."""

MOST_FILES = 10_000
"""Shards that an index is judged by; no release has a tenth of them."""

MOST = 20
"""Faults of one document that are reported one by one."""


class UnknownProfile(CkptError):
    """`--schema` names neither a profile of ours nor a file."""

    headline = "no such schema"


@rule(
    "S01",
    "the layout is the one asked for",
    evidence="the schema given with --schema",
    remedy="Quantize as the profile says: ckpt quantize BASE --preset NAME",
)
def layout_profile(case: Case) -> Iterable[Hit]:
    if case.schema is None:
        return
    from checkpoint.layout import layout
    from schemas import validate
    from schemas.apart import validate_apart

    schema, found = resolve_schema(case.schema), layout(case.checkpoint)
    faults = validate(found, schema) if isinstance(schema, str) else validate_apart(found, schema)
    yield from _hits("layout", faults, "not the layout that was asked for")


@rule(
    "S02",
    "the index satisfies its schema",
    evidence="schemas/index.schema.json",
    remedy="Write the checkpoint anew with any ckpt operation",
)
def index_schema(case: Case) -> Iterable[Hit]:
    if case.checkpoint.index is None:
        return
    from schemas import validate

    faults = validate(_abridged(case.checkpoint.index.value), "index")
    yield from _hits(INDEX, faults, "loaders may refuse the index")


@rule(
    "S03",
    "quantization_config satisfies its schema",
    evidence="schemas/quantization_config.schema.json",
    remedy="Restore quantization_config from the config.json that the exporter wrote",
)
def quantization_schema(case: Case) -> Iterable[Hit]:
    if case.quantization is None:
        return
    from schemas import validate

    faults = validate(case.quantization, "quantization_config")
    yield from _hits(f"{CONFIG}: quantization_config", faults, "compressed-tensors may refuse it")


def _abridged(index: Mapping[str, Any]) -> dict[str, Any]:
    """The index with one tensor of each of the first files: F15 judges every name, and 90,000 equal values need no
    second look."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        return dict(index)
    # What is no string may equal another value (1, 1.0, true), or have no hash, so its text stands for it.
    files = (file if isinstance(file, str) else (json.dumps(file),) for file in reversed(weight_map.values()))
    first = dict(zip(files, reversed(weight_map), strict=True))
    return {**index, "weight_map": {name: weight_map[name] for name in islice(reversed(first.values()), MOST_FILES)}}


def resolve_schema(schema: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A profile by name (`experts-int4-g32`), a schema by path, or one given as it is. Raises CkptError."""
    from schemas import names

    if not isinstance(schema, str):
        return schema
    for name in (PROFILES + schema, schema):
        if name in names():
            return name
    try:
        loaded = json.loads(read_whole(Path(schema), MAX_SCHEMA).decode())
    except (OSError, ValueError, RecursionError) as error:
        profiles = ", ".join(name.removeprefix(PROFILES) for name in names() if name.startswith(PROFILES))
        problem = Problem("schema-unreadable", str(error), schema, expected=f"a JSON Schema, or a profile: {profiles}")
        raise UnknownProfile(problem) from error
    if not isinstance(loaded, dict):
        raise UnknownProfile(Problem("schema-unreadable", f"a JSON {type(loaded).__name__}", schema))
    return loaded


def _hits(document: str, faults: Iterable[Any], consequence: str) -> Iterator[Hit]:
    listed = list(faults)
    for fault in listed[:MOST]:
        yield Hit(f"{document}: {fault.path}" if fault.path else document, fault.message, consequence)
    if len(listed) > MOST:
        yield Hit(document, f"{len(listed) - MOST} more faults", consequence, count=len(listed) - MOST)
