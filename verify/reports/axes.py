"""A pair of axes as inline SVG: numbers in, places out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, floor, log10

from verify.reports.markup import Markup, element, joined

LEFT, RIGHT, TOP, BOTTOM = 68, 12, 12, 40
"""Pixels around the frame, for the labels."""


@dataclass(frozen=True)
class Axes:
    """A frame of `width` x `height` pixels that shows x and y in these spans."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_label: str
    y_label: str
    width: int = 420
    height: int = 220
    percent: bool = False
    whole: bool = False

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where the point is drawn."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        inner_width, inner_height = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + across * inner_width, 1), round(TOP + (1 - up) * inner_height, 1)

    def points(self, values: Iterable[tuple[float, float]]) -> str:
        """The points as SVG writes them."""
        return " ".join(f"{x},{y}" for x, y in (self.at(*value) for value in values))

    def drawn(self, inside: Iterable[Markup], title: str) -> Markup:
        """The figure: frame, ticks, labels, and what is `inside`."""
        return element(
            "svg",
            element("title", title),
            self._grid(),
            joined(inside),
            element("text", self.x_label, x=(self.width + LEFT - RIGHT) / 2, y=self.height - 6, class_="label"),
            element(
                "text", self.y_label, transform=f"translate(13 {self.height / 2 - 10}) rotate(-90)", class_="label"
            ),
            viewBox=f"0 0 {self.width} {self.height}",
            width=self.width,
            height=self.height,
            role="img",
        )

    def _grid(self) -> Markup:
        return joined([*self._horizontal(), *self._vertical()])

    def _horizontal(self) -> Iterator[Markup]:
        for value in ticks(*self.y):
            x, y = self.at(self.x[0], value)
            yield element("line", x1=x, x2=self.width - RIGHT, y1=y, y2=y, class_="grid")
            text = f"{value:.3g}" if not self.percent else f"{100 * value:.3g} %"
            yield element("text", text, x=x - 6, y=y + 4, class_="tick end")

    def _vertical(self) -> Iterator[Markup]:
        for value in ticks(*self.x):
            if self.whole and value != int(value):
                continue
            x, y = self.at(value, self.y[0])
            yield element("line", x1=x, x2=x, y1=y, y2=y + 4, class_="axis")
            yield element("text", f"{value:.3g}", x=x, y=y + 16, class_="tick")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """A few round numbers between `low` and `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10 ** floor(log10(raw))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= raw), 10 * power)
    return [round(number * step, 12) for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
