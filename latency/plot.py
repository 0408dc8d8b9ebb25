"""A plot of a result: a panel for each figure, a group for each cell, a point with its quartiles for each candidate.

Needs matplotlib.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint.errors import escape, require
from checkpoint.wholefile import write_whole
from latency.measuring import Cell, Result
from latency.spread import FIGURES, Spread, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "first_ms": "first token, ms",
    "whole_ms": "whole turn, ms",
    "token_ms": "ms per token after the first",
    "tokens_per_second": "tokens a second, all streams",
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ckpt",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
}
FAINT = "#d0d7de"
WIDTH = 0.6
"""Of a cell's place on the axis, that its candidates share."""


def require_plots() -> None:
    """Raise MissingExtra where the library is not installed."""
    require("--plot", "matplotlib", extra="plots")


def draw(result: Result, path: Path) -> None:
    """Write the plot to `path`, a .png or .svg file, in one step. Raises MissingExtra, WriteFailed."""
    require_plots()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 6.0), layout="constrained")
        panels = list(figure.subplots(2, 2).flat)
        for axes, name in zip(panels, FIGURES, strict=True):
            _panel(axes, result, name)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
        buffer, kind = BytesIO(), path.suffix.removeprefix(".").lower()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_whole(buffer.getvalue(), path, "plot-unwritable")


def _panel(axes: Axes, result: Result, name: str) -> None:
    count = len(result.candidates)
    for number, candidate in enumerate(result.candidates):
        shift = (number - (count - 1) / 2) * WIDTH / count
        spreads = [Spread.of(values(cell.rounds[candidate.name], name)) for cell in result.cells]
        found = [(place + shift, spread) for place, spread in enumerate(spreads) if spread]
        middles = [spread.median for _, spread in found]
        errors = [
            [spread.median - spread.low for _, spread in found],
            [spread.high - spread.median for _, spread in found],
        ]
        label = escape(candidate.name)
        axes.errorbar(
            [place for place, _ in found], middles, yerr=errors, fmt="o", markersize=4, capsize=3, label=label
        )
    axes.set_title(TITLES[name], loc="left", fontsize=9)
    axes.set_xticks(range(len(result.cells)), [_label(cell) for cell in result.cells], fontsize=8)
    axes.set_xlim(-0.6, len(result.cells) - 0.4)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _label(cell: Cell) -> str:
    return f"{cell.prompt_tokens:,} in\n{cell.streams} at a time"
