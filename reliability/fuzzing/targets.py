"""All targets by name."""

from __future__ import annotations

from functools import cache

from reliability.fuzzing.readers import (
    addresses,
    asked,
    documents,
    git_says,
    header,
    records,
    schema,
    servers,
    yaml_files,
)
from reliability.fuzzing.target import Target

MODULES = (header, documents, yaml_files, records, schema, git_says, addresses, servers, asked)


@cache
def targets() -> dict[str, Target]:
    return {target.name: target for module in MODULES for target in module.TARGETS}


def target_of(name: str) -> Target:
    """Raises KeyError for a name that is none."""
    return targets()[name]
