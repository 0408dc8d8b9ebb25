"""Two plots of a result: SQNR over the layers by family, and how many weights have which. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoint import escape
from checkpoint.errors import require
from checkpoint.wholefile import write_whole
from compare.grouping import by_family, by_layer, row_of
from compare.result import Entry, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg")

MOST = 12
"""Families in a legend; of more the worst are drawn."""

BINS = 40
TEXT, FAINT = "#24292f", "#d0d7de"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ckpt",
    "font.size": 9,
    "text.parse_math": False,
    "text.color": TEXT,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def require_plots() -> None:
    """Raise MissingExtra where the library is not installed."""
    require("--plot", "matplotlib", extra="plots")


def draw(result: Result, path: Path) -> bool:
    """Write the plots to `path`, a .png or .svg file, in one step; False where there is nothing to draw.

    Raises MissingExtra and WriteFailed.
    """
    require_plots()
    found = [entry for entry in result.measured if entry.sums and isfinite(entry.sums.sqnr)]
    if not found:
        return False
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 4.6), layout="constrained")
        layers, counts = figure.subplots(1, 2, width_ratios=(3, 2))
        shown = _worst_families(found)
        _over_layers(layers, shown)
        _histogram(counts, shown)
        title = f"{_short(result.b)} against {_short(result.a)}"
        figure.suptitle(escape(title), x=0.01, ha="left", fontsize=10, fontweight="bold")
        figure.legend(*counts.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False, fontsize=8)
        buffer = BytesIO()
        kind = path.suffix.removeprefix(".").lower()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_whole(buffer.getvalue(), path, "plot-unwritable")
    return True


def _short(place: str) -> str:
    return os.path.basename(place.rstrip("/")) or place


def _worst_families(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    families = by_family(entries)
    order = sorted(families, key=lambda name: _sqnr(families[name]))
    return {name: families[name] for name in families if name in order[:MOST]}


def _sqnr(entries: Sequence[Entry]) -> float:
    sums = row_of(entries).sums
    return sums.sqnr if sums else 0.0


def _over_layers(axes: Axes, families: dict[str, list[Entry]]) -> None:
    """A line for each family through its layers, a level line for one that is in none."""
    for number, entries in enumerate(families.values()):
        colour = _colour(number)
        points = {layer[1]: _sqnr(members) for layer, members in by_layer(entries).items()}
        if points:
            axes.plot(list(points), list(points.values()), color=colour, marker="o", markersize=3, linewidth=1)
        else:
            axes.axhline(_sqnr(entries), color=colour, linewidth=1, linestyle="--")
    axes.set_title("SQNR by layer", loc="left", fontsize=9)
    axes.set_xlabel("layer")
    axes.set_ylabel("dB")
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)


def _histogram(axes: Axes, families: dict[str, list[Entry]]) -> None:
    values: list[list[float]] = [[e.sums.sqnr for e in entries if e.sums] for entries in families.values()]
    colours = [_colour(number) for number in range(len(values))]
    axes.hist(values, bins=BINS, stacked=True, color=colours, label=[escape(name) for name in families])
    axes.set_title("weights by SQNR", loc="left", fontsize=9)
    axes.set_xlabel("dB")
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _colour(number: int) -> Any:
    import matplotlib

    return matplotlib.colormaps["tab20" if number >= 10 else "tab10"](number)
