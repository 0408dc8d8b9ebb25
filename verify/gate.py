"""The gate before an upload: may this checkpoint leave the machine? Every hook asks this one function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoint import Checkpoint
from verify.case import ENGINES, Progress, silent
from verify.finding import Finding
from verify.registry import Level
from verify.report import Report
from verify.run import verify
from verify.waivers import Waiver, accepted, waivers_for


@dataclass(frozen=True)
class GateResult:
    """The verdict: `blocking` are the findings that forbid, `waived` those that would, had they not been waived, in
    the order of `report`, which has the reasons. `unused` are waivers for what was not found."""

    report: Report
    blocking: tuple[Finding, ...]
    waived: tuple[Finding, ...]
    unused: tuple[Waiver, ...] = ()

    @property
    def allowed(self) -> bool:
        return not self.blocking

    def lines(self) -> Iterator[str]:
        """What was let pass and why, and what need not have been, as plain text."""
        from checkpoint import escape
        from verify.reports.wording import brief_place, reason

        for finding in self.waived:
            yield escape(f"waived: {finding.rule} {brief_place(finding)}: {reason(finding, self.report)}")
        for waiver in self.unused:
            yield escape(f"a waiver that matches nothing: {waiver}" + (f" ({waiver.reason})" if waiver.reason else ""))


def gate(
    path: Checkpoint | Path | str,
    *,
    level: Level = "headers",
    base: Checkpoint | Path | str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    engines: Sequence[str] = ENGINES,
    strict: bool = False,
    waivers: Iterable[str | Waiver] = (),
    progress: Progress = silent,
) -> GateResult:
    """Judge `path` and say whether it may pass: no error, with `strict` no warning either.

    A waiver is a `Waiver`, or in short a rule's id, `X05`, or an id and a place, `X04:tokenizer_*.json`. What cannot
    be read at all raises UnreadableCheckpoint, so that it does not pass; a waiver for no rule, BadWaiver.

    >>> gate("EXPORT", waivers=[Waiver("F10", None, "the index is rewritten on the server")]).allowed  # doctest: +SKIP
    True
    """
    given = accepted(waivers)
    report = verify(path, base=base, schema=schema, engines=engines, level=level, progress=progress)
    used = {finding: waivers_for(finding, given) for finding in report.findings}
    waived = tuple(finding for finding in report.blocking(strict=strict) if used[finding])
    reasons = {finding: "; ".join(filter(None, (waiver.reason for waiver in used[finding]))) for finding in waived}
    judged = replace(report, waived=reasons)
    needless = set(given).difference(*used.values())
    unused = tuple(dict.fromkeys(waiver for waiver in given if waiver in needless))
    return GateResult(judged, tuple(judged.blocking(strict=strict)), waived, unused)
