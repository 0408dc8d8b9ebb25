"""Lines on a terminal: coloured, and wrapped under where they begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from checkpoint.errors import escape
from verify.reports.text import Line, Style

if TYPE_CHECKING:
    from rich.console import Console

COLOURS: Mapping[Style, str] = {
    "": "",
    "heading": "bold",
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "dim": "dim",
}


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Print with colours and wrapping; names are escaped, so none of them is markup or a control sequence."""
    from rich.text import Text

    for line in lines:
        text = Text(escape(line.text))
        text.stylize(COLOURS[line.style], 0, line.marked)
        hang = 2 if line.marked is None else min(line.marked, 9)
        wrapped = text.wrap(console, max(console.width - line.indent - hang, 20))
        for number, part in enumerate(wrapped):
            console.print(Text(" " * (line.indent + (hang if number else 0))).append_text(part))
