"""What an engine makes of a config: for every module, what it builds and by which entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from verify.engines.engine import Engine, Scope

Built = Literal["packed", "dense"]
Fault = Literal["shards", "experts", "no-target"]


class Resolution(NamedTuple):
    """What the engine builds for the checkpoint's `module`.

    `layer` is the engine's own name, that of the fused layer for a shard and of the owner for experts. `group` is set
    for what is built packed. `entry` is the ignore entry or target that decided, in the config's spelling. `exempt`
    modules are built dense whatever the config says.
    """

    module: str
    scope: Scope
    layer: str
    built: Built
    group: str | None = None
    entry: str | None = None
    ignored: bool = False
    exempt: bool = False


class LoadError(NamedTuple):
    """A config from which the engine cannot build `layer`: its shards or the projections of its experts disagree, or
    no target covers what is not ignored either."""

    fault: Fault
    scope: Scope
    layer: str
    found: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Resolved:
    """All modules of a checkpoint as `engine` builds them; a module may stand in both scopes (the shared head)."""

    engine: Engine
    main: Mapping[str, Resolution]
    draft: Mapping[str, Resolution]
    errors: tuple[LoadError, ...] = ()

    def scopes(self, module: str) -> tuple[Scope, ...]:
        """The scopes in which the engine loads `module`."""
        held: tuple[tuple[Scope, Mapping[str, Resolution]], ...] = (("main", self.main), ("draft", self.draft))
        return tuple(scope for scope, resolutions in held if module in resolutions)

    def __iter__(self) -> Iterator[Resolution]:
        yield from self.main.values()
        yield from self.draft.values()
