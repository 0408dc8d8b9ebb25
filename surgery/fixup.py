"""What an exporter leaves undone, in one draft."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint import Checkpoint
from checkpoint.draft import Draft
from surgery.comparison import Difference
from surgery.graft_mtp import graft_mtp
from surgery.ignore import derive
from surgery.int8_head import int8_head
from surgery.mtp import mtp_of
from surgery.quantization_config import current
from surgery.restore_dense import restore_dense
from surgery.restore_files import restore_files
from surgery.scheme import Maths, Scheme


def fixup(
    draft: Draft,
    base: Checkpoint,
    differences: Sequence[Difference],
    *,
    restore: Sequence[str] = (),
    head: Scheme | None = None,
    maths: Maths = "fp32",
) -> Draft:
    """MTP head, altered dense tensors, side files, ignore list and, where `head` is given, the head: one write.

    `differences` is what `compare_dense` found between the draft's origin and `base`.
    """
    if any(name.startswith(mtp_of(base.config).prefix) for name in base.tensors):
        draft = graft_mtp(draft, base)
    draft = restore_dense(draft, base, differences, restore)
    draft = restore_files(draft, base)
    if current(draft) is not None:
        draft = derive(draft)
    return int8_head(draft, base=base, scheme=head, maths=maths) if head else draft
