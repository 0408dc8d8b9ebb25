"""Dense tensors of an export beside the base's, with a bar to watch."""

from __future__ import annotations

from checkpoint import Checkpoint
from ckpt.output import Output
from surgery import Difference, compare_dense


def compared(origin: Checkpoint, base: Checkpoint, output: Output) -> list[Difference]:
    """What `compare_dense` finds, its progress told to `output`."""
    total = 2 * sum(ref.nbytes for name, ref in base.tensors.items() if name in origin.tensors)
    with output.progress("comparing", total) as advance:
        return compare_dense(origin, base, lambda nbytes: advance("", nbytes))
