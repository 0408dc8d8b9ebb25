"""What a new checkpoint shall hold, as a value. Operations are functions from draft to draft; none touches data.

A tensor of a draft is either a stored one, taken byte for byte, or an output of `Work` over a stored one. What an
operation finds wrong it records as a problem, so that several operations report all their refusals together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from checkpoint import dtypes
from checkpoint.document import Document
from checkpoint.errors import Problem
from checkpoint.folder import Checkpoint
from checkpoint.header import TensorRef

Block = tuple[str, int, memoryview]
"""(output, byte offset in it, bytes) made from one block of the input."""


class Work(Protocol):
    """Arithmetic over one stored region, cut into blocks that may run in any order and on any thread."""

    @property
    def source(self) -> TensorRef:
        """The region read."""

    @property
    def outputs(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """dtype and shape of each output."""

    @property
    def known(self) -> Mapping[str, bytes]:
        """Outputs that do not depend on the data; `run` makes the others."""

    @property
    def identity(self) -> str:
        """What tells its arithmetic from any other: works of one source and one identity make the same bytes."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""

    @property
    def block_memory(self) -> int:
        """Bytes that one running block needs at its peak, input included."""

    def span(self, block: int) -> tuple[int, int]:
        """(offset, bytes) in the source that `block` needs."""

    def buffer(self, nbytes: int) -> memoryview:
        """Memory of the calling thread to read a block into; the next call may hand it out again."""

    def run(self, block: int, data: memoryview) -> Iterable[Block]:
        """Compute the block that was read into `data`. Raises Refused where it cannot be processed (NaN, Inf)."""


@dataclass(frozen=True)
class Computed:
    """A tensor that is an output of some work."""

    work: Work
    output: str

    @property
    def dtype(self) -> str:
        return self.work.outputs[self.output][0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.work.outputs[self.output][1]

    @property
    def nbytes(self) -> int:
        return dtypes.nbytes(self.dtype, self.shape)


Source = TensorRef | Computed


@dataclass(frozen=True)
class Step:
    """One operation that made the draft what it is: in a line for people, and with its parameters for the manifest.

    `sources` are the other checkpoints that it took from, by role; `tensors` what the draft held after it, by which is
    told what came of which operation; `calibrated` are stored tensors that it stands for, made before by another tool.
    """

    operation: str
    summary: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    sources: Mapping[str, Checkpoint] = field(default_factory=dict, compare=False, repr=False)
    tensors: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)
    calibrated: Collection[str] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Draft:
    """`tensors` is in index order. `placement` names the shard of each tensor that the origin does not hold there; all
    others stay where they are stored."""

    origin: Checkpoint
    tensors: Mapping[str, Source]
    placement: Mapping[str, str]
    config: Document
    side_files: Mapping[str, Path]
    steps: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()
    unrun: tuple[Work, ...] = ()

    @staticmethod
    def of(checkpoint: Checkpoint) -> Draft:
        """The draft that changes nothing."""
        config = checkpoint.config_document or Document.of({})
        return Draft(checkpoint, checkpoint.tensors, {}, config, checkpoint.side_files)

    def shards_of(self, names: Iterable[str]) -> dict[str, str]:
        """The shard of the origin, or the new one, that each of the tensors `names` goes to."""
        homes: dict[str, str] = {}
        for label, header in self.origin.shards.items():
            homes |= dict.fromkeys(header.tensors, label)
        homes |= self.placement
        return {name: homes[name] for name in names}

    def replaced(self, changes: Mapping[str, Mapping[str, Source]]) -> Draft:
        """Each tensor named in `changes` makes way for the tensors given, in the same shard and place."""
        tensors: dict[str, Source] = {}
        placement = {name: shard for name, shard in self.placement.items() if name not in changes}
        shards = self.shards_of(name for name in changes if name in self.tensors)
        for name, source in self.tensors.items():
            instead = changes.get(name)
            if instead is None:
                tensors[name] = source
            else:
                tensors.update(instead)
                placement.update(dict.fromkeys(instead, shards[name]))
        return replace(self, tensors=tensors, placement=placement)

    def without(self, names: Iterable[str]) -> Draft:
        """The draft lacking `names`."""
        gone: dict[str, dict[str, Source]] = {name: {} for name in names if name in self.tensors}
        return self.replaced(gone) if gone else self

    def added(self, sources: Mapping[str, Source], shard: str) -> Draft:
        """The draft with new tensors at its end, in the shard named `shard`.

        Raises ValueError where it has such a name already: drop the old tensor first.
        """
        taken = [name for name in sources if name in self.tensors]
        if taken:
            raise ValueError(f"the draft has {taken[0]} already")
        tensors = {**self.tensors, **sources}
        return replace(self, tensors=tensors, placement={**self.placement, **dict.fromkeys(sources, shard)})

    def with_config(self, value: Mapping[str, Any]) -> Draft:
        """The draft whose config.json says `value`; unchanged members keep their text."""
        return replace(self, config=self.config.with_value(dict(value)))

    def noting(
        self,
        operation: str,
        summary: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        sources: Mapping[str, Checkpoint] | None = None,
        calibrated: Collection[str] = (),
    ) -> Draft:
        """The draft with a further `Step`, after which it holds what it does now. `parameters` are JSON values."""
        step = Step(operation, summary, parameters or {}, sources or {}, self.tensors, calibrated)
        return replace(self, steps=(*self.steps, step))

    def refusing(self, problems: Iterable[Problem], unrun: Iterable[Work] = ()) -> Draft:
        """The draft with `problems`; `unrun` is work that is not done because of them, whose input may have its own."""
        return replace(self, problems=(*self.problems, *problems), unrun=(*self.unrun, *unrun))
