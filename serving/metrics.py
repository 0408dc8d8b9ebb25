"""Metrics in Prometheus' text format, as far as counters and gauges go, and what an engine's say of its drafts.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from serving.engines import Engine

MOST_SAMPLES = 100_000
LONGEST_LINE = 10_000
"""Characters; a series of vLLM with all its labels has 150."""

MOST_COUNTED = 2.0**53
"""Above it not every whole number is a float, and sums need not be finite."""

MOST_POSITIONS = 1_000

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\s*\{{(.*)\}})?\s*(?<=[\s}}])([^\s}}]+)(?:\s+-?\d+)?")
_LINE = re.compile(r"[^\n]+")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """All samples of one reading. Lines that are none are left out: an engine's metrics are no input to be refused."""

    samples: tuple[Sample, ...]

    def total(self, name: str, model: str | None = None) -> float | None:
        """The sum over all series of that name, of `model` alone where they name models; None where there is none."""
        found = [sample.value for sample in self._of(name, model)]
        return sum(found) if found else None

    def mean(self, name: str, model: str | None = None) -> float | None:
        """The mean over all series of a gauge, as over the ranks of an engine."""
        found = [sample.value for sample in self._of(name, model)]
        return sum(found) / len(found) if found else None

    def by_label(self, name: str, label: str, model: str | None = None) -> dict[str, float]:
        """Sums by the value of one label."""
        sums: dict[str, float] = {}
        for sample in self._of(name, model):
            if label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums

    def _of(self, name: str, model: str | None) -> list[Sample]:
        return [
            sample
            for sample in self.samples
            if sample.name == name
            and abs(sample.value) <= MOST_COUNTED
            and (model is None or sample.labels.get("model_name", model) == model)
        ]


def parse_metrics(text: str) -> Metrics:
    """The samples of a page of metrics."""
    samples: list[Sample] = []
    for line in _LINE.finditer(text):
        sample = None if line[0].startswith("#") else _sample(line[0])
        if sample is not None:
            samples.append(sample)
        if len(samples) == MOST_SAMPLES:
            break
    return Metrics(tuple(samples))


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.fullmatch(line.strip()) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    return Sample(match[1], _labels(match[2] or ""), value)


def _labels(text: str) -> dict[str, str]:
    """Labels one behind the other, up to what is none."""
    labels, label = {}, _LABEL.match(text)
    while label is not None:
        labels[label[1]] = re.sub(r"\\.", _unescape, label[2])
        label = _LABEL.match(text, label.end())
    return labels


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0], match[0])


@dataclass(frozen=True)
class Speculation:
    """What speculative decoding did between two readings.

    `acceptance`: accepted over drafted tokens. `length`: tokens per step of the target model, its own one included
    (1 + accepted / drafts). `by_position`: accepted at each draft position over drafts. `drafts`: None where the engine
    only gives gauges, which are of the recent past and not of these requests alone.
    """

    acceptance: float | None
    length: float | None
    by_position: tuple[float, ...] = ()
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None


def speculation(engine: Engine, before: Metrics, after: Metrics, model: str | None = None) -> Speculation | None:
    """What happened between two readings; None where the engine does not speculate, or drafted nothing meanwhile."""
    names = engine.speculation
    if "accepted_length" in names:
        length = after.mean(names["accepted_length"], model)
        rate = after.mean(names["acceptance"], model)
        return Speculation(None if rate is None or rate < 0 else rate, length) if length and length > 0 else None
    if "drafts" not in names:
        return None
    drafts, drafted, accepted = (_grown(names[key], before, after, model) for key in ("drafts", "drafted", "accepted"))
    if not drafts or not drafted or accepted is None:
        return None
    positions = _by_position(names["accepted_by_position"], drafts, before, after, model)
    return Speculation(accepted / drafted, 1 + accepted / drafts, positions, drafts, drafted, accepted)


def _grown(name: str, before: Metrics, after: Metrics, model: str | None) -> int | None:
    """By how much a counter grew; None where it is not there, or began anew."""
    new, old = after.total(name, model), before.total(name, model)
    grown = None if new is None else new - (old or 0.0)
    return None if grown is None or grown < 0 else round(grown)


def _by_position(name: str, drafts: int, before: Metrics, after: Metrics, model: str | None) -> tuple[float, ...]:
    new, old = after.by_label(name, "position", model), before.by_label(name, "position", model)
    grown = [new[str(place)] - old.get(str(place), 0.0) for place in range(MOST_POSITIONS) if str(place) in new]
    return () if any(value < 0 for value in grown) else tuple(value / drafts for value in grown)
