"""Where a command's words go: results to stdout, progress and hints to stderr, one JSON document with `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from checkpoint import escape
from ckpt.bars import bars


class Output:
    """One command's output in one of three modes: for people, `as_json`, or `quiet`."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def line(self, text: str = "") -> None:
        """A line for people; nothing in the other modes."""
        if not self.as_json and not self.quiet:
            print(escape(text))

    def result(self, document: dict[str, Any]) -> None:
        """The command's result for machines; nothing in the other modes."""
        if self.as_json:
            print(json.dumps(document, indent=2, ensure_ascii=True))

    def hint(self, text: str) -> None:
        """What a person may want to do next; on stderr, so that pipes stay clean."""
        if not self.as_json and not self.quiet:
            print(escape(text), file=sys.stderr)

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[str, int], None]]:
        """A bar with bytes and remaining time on stderr, where that is a terminal; yields (what, bytes) -> None."""
        with bars(self.as_json or self.quiet or total <= 0, of_bytes=True) as shown:
            if shown is None:
                yield lambda what, nbytes: None
                return
            task = shown.add_task(title, total=total)
            yield lambda what, nbytes: shown.update(task, advance=nbytes, description=f"{title} {escape(what)}")


def table(rows: list[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as aligned lines; the columns in `right` are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
