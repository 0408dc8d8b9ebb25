"""What a hook says: a line for each checkpoint, the findings as `ckpt verify` prints them, and the way out."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from checkpoint import escape
from ckpt.hooks.judging import Verdict
from ckpt.showing import Showing, show

FOUND, NOT_JUDGED = 1, 3
"""Exit codes, as everywhere: verification found errors; input could not be read."""

WAY_OUT = {
    "push": (
        "ckpt: refused, nothing is pushed. Mend it and commit,",
        "      or waive what may pass, with a reason: git config ckpt.waivers FILE,",
        "      or push it as it is: git push --no-verify",
    ),
    "commit": (
        "ckpt: refused, nothing is committed. Mend it,",
        "      or waive what may pass, with a reason: git config ckpt.waivers FILE,",
        "      or commit it as it is: git commit --no-verify",
    ),
}


def tell(verdicts: Iterable[Verdict], what: str) -> int:
    """Print each verdict as it comes, and how to go on where one forbids. Returns the exit code."""
    codes = [_tell(verdict) for verdict in verdicts]
    sys.stdout.flush()
    if any(codes):
        print("\n".join(WAY_OUT[what]), file=sys.stderr)
    return min(code for code in codes if code) if any(codes) else 0


def _tell(verdict: Verdict) -> int:
    place = f"{verdict.folder}/, " if verdict.folder else ""
    shards = f"{verdict.shards:,} shard{'' if verdict.shards == 1 else 's'}"
    print(escape(f"ckpt: {verdict.target}, {place}{shards}: {_in_short(verdict)}"))
    for problem in verdict.problems:
        print(f"  - {problem}")
    if verdict.result and verdict.checkpoint:
        if verdict.result.report.findings:
            show(verdict.result.report, verdict.checkpoint, Showing("text"))
        for line in verdict.result.lines():
            print(line)
    if verdict.allowed:
        return 0
    return FOUND if verdict.judged else NOT_JUDGED


def _in_short(verdict: Verdict) -> str:
    if verdict.result is None:
        return verdict.headline or verdict.note
    if not verdict.result.report.findings:
        return verdict.result.report.summary()
    return "may pass" if verdict.allowed else "refused"
