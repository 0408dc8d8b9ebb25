"""How much of the model is calibrated at a time, so that the Hessians in memory together fit what is stated.

All modules of a sequential target have their Hessians at once. A layer at a time is the fewest passes; one of many
experts can be more than the memory holds, and is then taken by its blocks, several at a time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from checkpoint.patterns import PREFIX, first_match
from surgery.gptq.modules import Planned
from surgery.gptq.settings import Settings

_LAYER = re.compile(r".+?\.\d+(?=\.)")


@dataclass(frozen=True)
class Targets:
    """`entries` match module names in llm-compressor; `together` of the modules that they match make one step.

    `hessian_bytes` is the most that the Hessians of a step take; None where the entries are class names, which only the
    model's code can tell from one another.
    """

    entries: tuple[str, ...]
    together: int
    hessian_bytes: int | None

    def __str__(self) -> str:
        each = f", {self.together} together" if self.together > 1 else ""
        return f"{', '.join(self.entries)}{each}"


def targets_for(modules: Sequence[Planned], settings: Settings) -> Targets:
    """The targets that the settings name, else the largest steps of which each fits the memory; where none does, the
    smallest."""
    if settings.sequential_targets is not None:
        named, together = settings.sequential_targets, settings.targets_per_subgraph
        return Targets(named, together, _named_bytes(modules, named, together))
    layers = _blocks(modules, _layer)
    largest = _most(layers, 1)
    if largest <= settings.memory:
        return Targets(_entries({_layer(module) for module in modules}), 1, largest)
    blocks = _blocks(modules, lambda module: module.owner)
    counts = range(1, min(map(len, blocks)) + 1)
    together = max(1, bisect_right(counts, settings.memory, key=lambda count: _most(blocks, count)))
    return Targets(_entries({module.owner for module in modules}), together, _most(blocks, together))


def _layer(module: Planned) -> str:
    """`model.layers.3` for a module in it; the block of one that is in no layer."""
    found = _LAYER.match(module.name)
    return found[0] if found else module.owner


def _blocks(modules: Iterable[Planned], block: Callable[[Planned], str]) -> list[list[int]]:
    """Bytes of the Hessians of each block, layer by layer."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for module in modules:
        found[_layer(module)][block(module)] += module.hessian_bytes
    return [list(blocks.values()) for blocks in found.values()]


def _most(blocks: Sequence[Sequence[int]], together: int) -> int:
    """The most that `together` blocks take which follow one another in the model.

    In what order a layer runs its blocks, only its code knows, and a step may end one layer and begin the next.
    """
    fewest = min(map(len, blocks))
    span = -(-(together - 1) // fewest) + 1
    runs = (chain.from_iterable(blocks[start : start + span]) for start in range(max(1, len(blocks) - span + 1)))
    return max(sum(sorted(run, reverse=True)[:together]) for run in runs)


def _entries(names: Iterable[str]) -> tuple[str, ...]:
    """`re:` entries that match exactly the modules called `names`, numbers left open."""
    return tuple(sorted({f"{PREFIX}{_open(name)}$" for name in names}))


def _open(name: str) -> str:
    return r"\.".join(r"\d+" if part.isdecimal() else re.escape(part) for part in name.split("."))


def _named_bytes(modules: Iterable[Planned], entries: Sequence[str], together: int) -> int | None:
    """What steps by `entries` take, where each module is in a block that they name."""
    homes = {module: _home(module, entries) for module in modules}
    if None in homes.values():
        return None
    return _most(_blocks(homes, lambda module: homes[module] or ""), together)


def _home(module: Planned, entries: Sequence[str]) -> str | None:
    """The outermost block of the module that an entry names."""
    parts = module.name.split(".")
    names = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return next((name for name in names if first_match(entries, name) is not None), None)
