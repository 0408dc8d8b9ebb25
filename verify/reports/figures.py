"""Plots of how far packed weights are from the base's: by step of the grid, by module, by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from verify.measuring import BINS, SPAN, Measurement
from verify.reports.axes import Axes
from verify.reports.markup import Markup, element, joined

SERIES = 8
"""Colours in the page's style sheet; further series are dashed."""

COLUMNS = 30

Points = list[tuple[int, float, float, float]]
"""(layer, smallest, mean, largest error)"""


def scheme_of(one: Measurement) -> str:
    """`INT4, groups of 32`."""
    return f"INT{one.bits}, groups of {one.group}"


def part_of(module: str) -> tuple[str, int | None]:
    """What a module is, its expert number open, and its layer: the first number of its name."""
    parts = module.split(".")
    place = next((position for position, part in enumerate(parts) if part.isdecimal() and len(part) < 7), None)
    if place is None:
        return module, None
    rest = ["*" if part.isdecimal() else part for part in parts[place + 1 :]]
    prefix = [] if parts[0] == "model" else parts[:1]
    return ".".join([*prefix, *rest]), int(parts[place])


def step_histogram(measurements: Sequence[Measurement], title: str) -> Markup:
    """How the weights are spread over the distance from the base's, in steps of the grid."""
    counts = [sum(column) for column in zip(*(one.steps for one in measurements), strict=True)]
    total = sum(counts) or 1
    width = 2 * SPAN / BINS
    bars = [(-SPAN + number * width, width, count / total) for number, count in enumerate(counts)]
    label = "distance from the base's weight, in steps of the grid"
    return _bars(
        bars, Axes((-SPAN, SPAN), (0, max(bar[2] for bar in bars) or 1), label, "weights", percent=True), title
    )


def error_histogram(measurements: Sequence[Measurement], title: str) -> Markup:
    """How many modules have which relative error."""
    errors = [one.error for one in measurements if one.error is not None]
    low, high = (min(errors), max(errors)) if errors else (0.0, 1.0)
    low, high = (low, high) if high - low > 1e-9 else (low * 0.9, high * 1.1 or 1.0)
    width = (high - low) / COLUMNS
    counts = [0] * COLUMNS
    for error in errors:
        counts[min(int((error - low) / width), COLUMNS - 1)] += 1
    bars = [(low + number * width, width, float(count)) for number, count in enumerate(counts)]
    return _bars(bars, Axes((low, high), (0, float(max(counts))), "relative error", "modules"), title)


def _bars(bars: Sequence[tuple[float, float, float]], axes: Axes, title: str) -> Markup:
    return axes.drawn(_rectangles(bars, axes), title)


def _rectangles(bars: Sequence[tuple[float, float, float]], axes: Axes) -> Iterator[Markup]:
    for left, width, height in bars:
        if height:
            (x, y), (end, bottom) = axes.at(left, height), axes.at(left + width, 0)
            yield element(
                "rect", x=x, y=y, width=round(max(end - x - 1, 1), 1), height=round(bottom - y, 1), class_="bar"
            )


def layer_series(measurements: Iterable[Measurement]) -> dict[str, Points]:
    """By part of the layers: for each layer the smallest, the mean and the largest error of its modules."""
    found: dict[str, dict[int, list[float]]] = {}
    for one in measurements:
        part, layer = part_of(one.module)
        if layer is not None and one.error is not None:
            found.setdefault(part, {}).setdefault(layer, []).append(one.error)
    return {
        part: [(layer, min(errors), sum(errors) / len(errors), max(errors)) for layer, errors in sorted(layers.items())]
        for part, layers in found.items()
    }


def layer_plot(series: Mapping[str, Points], title: str) -> Markup:
    """Mean error by layer, a line for each part, in a band from the smallest to the largest."""
    points = [point for values in series.values() for point in values]
    first, last = min(point[0] for point in points), max(point[0] for point in points)
    low, high = min(point[1] for point in points), max(point[3] for point in points)
    margin = (high - low) * 0.08 or high * 0.1 or 1.0
    span = (float(first), float(last)) if last > first else (first - 1.0, last + 1.0)
    axes = Axes(
        span, (max(low - margin, 0), high + margin), "layer", "relative error", width=860, height=300, whole=True
    )
    return axes.drawn(_curves(series, axes), title)


def _curves(series: Mapping[str, Points], axes: Axes) -> Iterator[Markup]:
    for number, (part, values) in enumerate(series.items()):
        colour = f"s{number % SERIES}" + (" dashed" if number >= SERIES else "")
        band = [(layer, high) for layer, _, _, high in values] + [(layer, low) for layer, low, _, _ in reversed(values)]
        yield element("polygon", points=axes.points(band), class_=f"band {colour}")
        yield element("polyline", points=axes.points((v[0], v[2]) for v in values), class_=f"curve {colour}")
        for layer, low, mean, high in values:
            x, y = axes.at(layer, mean)
            told = element("title", f"{part}, layer {layer}: {mean:.3g} ({low:.3g} to {high:.3g})")
            yield element("circle", told, cx=x, cy=y, r=3, class_=f"dot {colour}")


def legend(series: Mapping[str, Points]) -> Markup:
    """The names of the series in their colours."""
    names = list(series)
    items = [
        element("li", element("i", class_=f"key s{n % SERIES}{' dashed' if n >= SERIES else ''}"), name)
        for n, name in enumerate(names)
    ]
    return element("ul", joined(items), class_="legend")
