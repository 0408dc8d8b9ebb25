"""Our operations from start to end as a Python program calls them, to be timed by `benchmarks.inside`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from surgery import Group, Maths, Scheme
from surgery import graft_mtp as grafted
from surgery import int8_head as with_int8_head
from surgery import quantize as quantized


def quantize(src: str, out: str, target: str, bits: str, group_size: str, maths: str, hashing: bool) -> None:
    """Pack what `target` names."""
    group = Group((target,), Scheme(int(bits), int(group_size)))
    _write(quantized(_draft(src), [group], maths=cast(Maths, maths)), out, hashing)


def int8_head(src: str, out: str, hashing: bool) -> None:
    """Pack the dense head of an export."""
    _write(with_int8_head(_draft(src)), out, hashing)


def graft_mtp(src: str, base: str, out: str, hashing: bool) -> None:
    """Put the base's MTP head into an export."""
    _write(grafted(_draft(src), open_checkpoint(base)), out, hashing)


def verify(src: str, base: str) -> None:
    """Judge everything in `src` against `base`, by the compiled kernels whatever its size: a small first call has to
    load them, as it does for the operations that write."""
    from verify import compiled
    from verify import verify as judge

    compiled.WORTH = 0
    judge(src, base=base, level="full")


def _draft(src: str) -> Draft:
    return Draft.of(open_checkpoint(src))


def _write(draft: Draft, out: str, hashing: bool) -> None:
    apply_plan(plan_for(draft, Path(out)), Path(out), hashing=hashing)
