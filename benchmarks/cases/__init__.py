"""One file per case; `CASES` has them in the order in which they run."""

from benchmarks.case import Case
from benchmarks.cases import experts, graft, head, headers, int8_head, scaling, startup, verify_full

CASES: tuple[Case, ...] = (
    experts.CASE,
    head.CASE,
    graft.CASE,
    int8_head.CASE,
    headers.CASE,
    verify_full.CASE,
    startup.CASE,
    scaling.CASE,
)
