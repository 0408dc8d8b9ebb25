"""The command as it was given, for the manifest: without what changes no byte, and without where folders lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from checkpoint.manifest.whence import folder_name, snapshot_of

SILENT = frozenset(
    {
        "out", "in_place", "dry_run", "no_verify", "workers", "no_hash", "memory", "cache_bytes", "device", "as_json",
        "quiet", "work", "python", "keep_work", "compare_rtn", "output", "form", "measure", "strict", "verbose",
    }
)  # fmt: skip
"""Options that decide where, how fast and with how many words, never which bytes."""

FILES = frozenset({"recipe", "schema", "waivers"})
"""Arguments that name a file or something that is known by name."""


def typed() -> tuple[str, ...] | None:
    """The words of the command that is running, options in the order of its help; None outside of one."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name is None:
        return None
    words = ["ckpt", context.info_name]
    for parameter in context.command.params:
        if parameter.name and _is_said(context, parameter.name):
            words += _words(parameter, context.params.get(parameter.name))
    return tuple(words)


def _is_said(context: click.Context, name: str) -> bool:
    return name not in SILENT and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _words(parameter: click.Parameter, value: Any) -> Iterator[str]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    if not isinstance(parameter, click.Option):
        yield from (_shown(parameter, one) for one in values if one is not None)
        return
    flag = max(parameter.opts, key=len)
    for one in values:
        if parameter.is_flag:
            yield flag
        elif one is not None:
            yield from (flag, _shown(parameter, one))


def _shown(parameter: click.Parameter, value: Any) -> str:
    if isinstance(value, Path):
        repo = snapshot_of(value)
        return f"{repo}@{folder_name(value)}" if repo else folder_name(value)
    if parameter.name in FILES:
        return Path(value).name
    if parameter.name == "group_size" and value == 0:
        return "channel"
    return str(value)
