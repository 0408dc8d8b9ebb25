"""Where the arithmetic of a draft is done."""

from __future__ import annotations

import re
from dataclasses import replace

from checkpoint import Computed, Problem, Refused
from checkpoint.draft import Draft, Source, Work
from surgery.blocks import CPU, Packer
from surgery.work import PackRows


def packed_by(draft: Draft, packer: Packer) -> Draft:
    """`draft` with its packing done by `packer`. The bits are the same by each."""
    moved: dict[int, Work] = {}

    def there(work: Work) -> Work:
        if not isinstance(work, PackRows):
            return work
        return moved.setdefault(id(work), replace(work, packer=packer))

    tensors: dict[str, Source] = {
        name: Computed(there(source.work), source.output) if isinstance(source, Computed) else source
        for name, source in draft.tensors.items()
    }
    return replace(draft, tensors=tensors, unrun=tuple(map(there, draft.unrun)))


def packer_for(device: str) -> Packer:
    """The packer on `device`: `cpu`, `cuda` or `cuda:N`. Raises MissingExtra or Refused where there is none."""
    if device == "cpu":
        return CPU
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", device)
    if match is None:
        raise Refused(Problem("device-unknown", f"device {device!r}", expected="cpu, cuda or cuda:N"))
    from surgery.cuda import Cuda

    return Cuda(int(match[1]) if match[1] else None)
