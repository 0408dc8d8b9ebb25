"""The part of the page on contents: how far the packed weights are from the base's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from verify.measuring import Measurement
from verify.report import Report
from verify.reports.figures import (
    error_histogram,
    layer_plot,
    layer_series,
    legend,
    part_of,
    scheme_of,
    step_histogram,
)
from verify.reports.markup import Markup, element, joined

WORST = 5
"""Modules that the list of the farthest names."""


def contents(report: Report) -> Iterator[Markup]:
    """Figures and tables; nothing where nothing was measured."""
    if not report.measurements:
        return
    yield element("h2", "Packed weights against the base")
    rows = "their first rows" if report.level == "sample" else "all of their rows"
    said = f"{len(report.measurements):,} packed modules, {rows}. The relative error is |packed - base| / |base|."
    yield element("p", said, class_="sum")
    for scheme, group in _groups(report.measurements, scheme_of).items():
        yield from _scheme(scheme, group)
    yield from _farthest(report.measurements)


def _scheme(scheme: str, group: Sequence[Measurement]) -> Iterator[Markup]:
    yield element("h3", scheme)
    spread = "Rounding to the nearest step keeps within half a step; calibration and clipping go beyond."
    yield element(
        "div",
        _figure(step_histogram(group, f"Distances in steps, {scheme}"), spread),
        _figure(error_histogram(group, f"Relative errors, {scheme}"), "Modules by their relative error."),
        class_="pair",
    )
    series = layer_series(group)
    if series:
        plot = joined([layer_plot(series, f"Relative error by layer, {scheme}"), legend(series)])
        yield _figure(plot, "Mean by layer; the band reaches from the smallest to the largest, over experts.")
    yield _table(group)


def _figure(drawing: Markup, caption: str) -> Markup:
    return element("figure", drawing, element("figcaption", caption))


def _table(group: Sequence[Measurement]) -> Markup:
    """A row for each part of the layers."""
    head = ("module", "how many", "mean error", "largest", "at the grid's ends")
    rows = []
    for part, mine in _groups(group, lambda one: part_of(one.module)[0]).items():
        errors = [one.error for one in mine if one.error is not None]
        mean, largest = (f"{sum(errors) / len(errors):.4f}", f"{max(errors):.4f}") if errors else ("-", "-")
        ends = sum(one.saturation for one in mine) / len(mine)
        rows.append((part, f"{len(mine):,}", mean, largest, f"{100 * ends:.1f} %"))
    return rows_of(head, rows)


def _farthest(measurements: Sequence[Measurement]) -> Iterator[Markup]:
    known = [one for one in measurements if one.error is not None]
    worst = sorted(known, key=lambda one: -(one.error or 0))[:WORST]
    if len(known) > WORST:
        yield element("h3", "Farthest from the base")
        rows = [(one.module, f"{one.error:.4f}", f"{100 * one.saturation:.1f} %") for one in worst]
        yield rows_of(("module", "error", "at the grid's ends"), rows)


def _groups(measurements: Sequence[Measurement], key: Callable[[Measurement], str]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for one in measurements:
        found.setdefault(key(one), []).append(one)
    return found


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> Markup:
    """A table; the first `words` columns are words, the others numbers."""
    classes = [None if number < words else "n" for number in range(len(head))]
    top = element("tr", (element("th", text, class_=name) for text, name in zip(head, classes, strict=True)))
    body = (
        element("tr", (element("td", text, class_=name) for text, name in zip(row, classes, strict=True)))
        for row in rows
    )
    return element("div", element("table", top, joined(body)), class_="scroll")
