"""Two plots of a result: ours beside peers and floors, and how time and memory grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import CaseResult, Result, Series

SIDE_BY_SIDE = ("experts", "head", "graft", "verify-full")
"""Cases in which something else does the same work."""

SCALING = "scaling"

BESIDE, GROWTH = "performance-beside.svg", "performance-growth.svg"

COLOURS = {"ours": "#1f6feb", "peer": "#c2571a", "floor": "#9aa4af", "reference": "#9aa4af"}
MARKERS = "vsDP*X"
TEXT, FAINT = "#24292f", "#d0d7de"

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ckpt",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": TEXT,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def draw(result: Result, folder: Path) -> list[Path]:
    """Write the plots that `result` has the figures for; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    cases = {case.name: case for case in result.cases if case.series}
    drawn = []
    with matplotlib.rc_context(STYLE):
        if beside := [cases[name] for name in SIDE_BY_SIDE if name in cases]:
            drawn.append(_saved(_side_by_side(beside), folder / BESIDE))
        if SCALING in cases:
            drawn.append(_saved(_growth(cases[SCALING]), folder / GROWTH))
    return drawn


def _saved(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    return path


def _side_by_side(cases: Sequence[CaseResult]) -> Any:
    """A panel for each case, a bar for each contender, the number at its end."""
    from matplotlib.figure import Figure

    shown = [_shown(case.series) for case in cases]
    heights = [len(series) for series in shown]
    figure = Figure(figsize=(7.6, 0.34 * sum(heights) + 0.55 * len(cases)), layout="constrained")
    for axes, case, series in zip(
        figure.subplots(len(cases), 1, squeeze=False, height_ratios=heights)[:, 0], cases, shown, strict=True
    ):
        places = range(len(series))
        axes.barh(places, [one.median for one in series], color=[COLOURS[one.role] for one in series], height=0.66)
        axes.set_yticks(places, [one.name for one in series])
        axes.invert_yaxis()
        for place, one in zip(places, series, strict=True):
            axes.annotate(f"{one.median:.2f} s", (one.median, place), (4, 0), textcoords="offset points", va="center")
        axes.set_title(case.title, loc="left", fontsize=9, fontweight="bold")
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.12)
    return figure


def _shown(series: Sequence[Series]) -> list[Series]:
    """The calls inside where there are any, else whole processes; whole processes of floors."""
    inside = {one.name for one in series if one.scope == "in process"}
    return [one for one in series if one.role == "floor" or (one.name in inside and one.scope == "in process")]


def _growth(case: CaseResult) -> Any:
    """Time and peak memory over the bytes of the input; what differs otherwise is a point of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    ours = [one for one in case.series if one.role == "ours"]
    _points(time, ours, [one.median for one in ours])
    _points(memory, ours, [max(one.peak) / 1e6 for one in ours])
    floors = [one for one in case.series if one.role == "floor"]
    places = [one.tags["bytes"] / 1e9 for one in floors]
    time.plot(places, [one.median for one in floors], color=COLOURS["floor"], marker="o", markersize=4, label="cat, cp")
    memory.axhline(2**30 / 1e6, color=FAINT, linestyle="--")
    memory.annotate("1 GiB", (0, 2**30 / 1e6), (4, 3), textcoords="offset points", fontsize=8)
    for axes, title in ((time, "seconds, whole process"), (memory, "peak memory, MB")):
        axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        axes.set_xlabel("GB of BF16 weights")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.margins(y=0.1)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
    figure.legend(*time.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return figure


def _points(axes: Any, series: Sequence[Series], values: Sequence[float]) -> None:
    """A curve through the inputs that differ in their bytes alone, a hollow mark for each other one."""
    pairs = [(one.tags["bytes"] / 1e9, value) for one, value in zip(series, values, strict=True)]
    curve = [pair for one, pair in zip(series, pairs, strict=True) if _is_plain(one)]
    axes.plot(*zip(*curve, strict=True), color=COLOURS["ours"], marker="o", markersize=4, label="ckpt quantize")
    others = [(one.name, pair) for one, pair in zip(series, pairs, strict=True) if not _is_plain(one)]
    for (name, pair), marker in zip(others, MARKERS, strict=False):
        axes.plot(*pair, color=COLOURS["ours"], marker=marker, fillstyle="none", linestyle="none", label=name)


def _is_plain(series: Series) -> bool:
    """One shard, two workers, matrices of the usual size: a point on the curve."""
    usual = series.tags["bytes"] / series.tags["modules"] > 1e6
    return usual and series.tags["workers"] == 2 and series.tags["shards"] == 1
