"""A report where it was asked for: on a terminal, in a pipe, or in a file that is there whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoint import Checkpoint, escape
from checkpoint.wholefile import write_whole
from ckpt.bars import bars

if TYPE_CHECKING:
    from verify import Report
    from verify.case import Progress
    from verify.reports import Form


@dataclass(frozen=True)
class Showing:
    """How a report is shown. `output` is None for stdout."""

    form: Form
    output: Path | None = None
    verbose: bool = False
    strict: bool = False
    quiet: bool = False

    @property
    def for_people(self) -> bool:
        return self.form == "text" and not self.quiet

    @property
    def hidden(self) -> Showing:
        return replace(self, output=None, quiet=True)


def show(report: Report, checkpoint: Checkpoint, showing: Showing) -> None:
    """Write the report to its file, with the sum on stderr, or print it. Raises WriteFailed."""
    from verify.reports import render

    if showing.output is None and showing.quiet:
        return
    if showing.output is None and showing.form == "text" and sys.stdout.isatty():
        from verify.reports.text import brief, full

        _print((full if showing.verbose else brief)(report))
        return
    text = render(report, showing.form, checkpoint, verbose=showing.verbose, strict=showing.strict)
    if showing.output is None:
        sys.stdout.write(text)
        return
    write_whole(text.encode(), showing.output, "report-unwritable")
    if not showing.quiet:
        print(f"{report.summary()}; written to {showing.output}", file=sys.stderr)


def print_explanation(rule_ids: Sequence[str]) -> None:
    """One rule in full, several by their titles."""
    from verify.reports.text import explanation

    lines = list(explanation(rule_ids[0])) if len(rule_ids) == 1 else [next(explanation(one)) for one in rule_ids]
    if sys.stdout.isatty():
        _print(lines)
    else:
        sys.stdout.write("".join(f"{line.plain}\n" for line in lines))


def _print(lines: Any) -> None:
    from rich.console import Console

    from verify.reports.terminal import print_lines

    print_lines(lines, Console())


@contextmanager
def watched(hidden: bool) -> Iterator[Progress]:
    """What content rules report their progress to: a bar on stderr, where that is a terminal."""
    from verify.case import silent

    with bars(hidden) as shown:
        if shown is None:
            yield silent
            return
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(escape(what), total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield advance
