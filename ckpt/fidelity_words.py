"""A fidelity result for people: what was asked, a table of measures, and what can be told of the differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpt.output import table
from ckpt.text import plural

if TYPE_CHECKING:
    from fidelity import Column, Compared, Measure, Result

BY = {"tokenizer": "its own chat template", "server": "the server's chat template", "raw": "no chat template"}
ABSENT = "-"


def show(result: Result) -> Iterator[str]:
    """All lines of it."""
    asked, references = result.asked, result.references
    yield (
        f"{plural(len(asked.prompts), 'prompt')} ({asked.name}), greedy, at most "
        f"{plural(references.max_tokens, 'token')}; {BY[references.source.layout.by]}"
    )
    yield f"base: {references.source.title}"
    for candidate in result.candidates:
        yield f"{candidate.name}: {candidate.source.title}"
    yield ""
    yield from _measures(result)
    yield from _notes(result)
    if result.differences:
        yield ""
        yield from _differences(result)


def _measures(result: Result) -> Iterator[str]:
    from fidelity import MEASURES

    columns = result.columns
    rows: list[tuple[str, ...]] = [("", "n", *(column.name for column in columns))]
    for measure in MEASURES:
        sums = [column.summary(measure) for column in columns]
        count = max(n for _, n in sums)
        if count or measure.name == "nll":
            rows.append((measure.title, f"{count}", *(_value(measure, value) for value, _ in sums)))
        rows += _beside(measure, columns)
    yield from table(rows, right=frozenset(range(1, len(columns) + 2)))


def _beside(measure: Measure, columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """What else is told of a measure, in rows of its own."""
    if measure.name == "nll" and any(column.median_nll is not None for column in columns):
        yield ("  median of prompts", "", *(_number(column.median_nll, "{:.4f}") for column in columns))
    if measure.name == "first_sentence" and any(column.median_divergence is not None for column in columns):
        yield ("first other token, median", "", *(_number(column.median_divergence, "{:g}") for column in columns))
    if measure.name == "format":
        for probe in columns[0].forms:
            cells = [column.forms[probe] for column in columns]
            yield (f"  {probe}", f"{cells[0][1]}", *(f"{passed} of {asked}" for passed, asked in cells))


def _value(measure: Measure, value: float | None) -> str:
    if measure.rate and value is not None:
        return f"{100 * value:.0f} %"
    return _number(value, "{:.4f}" if measure.name == "nll" else "{:.3f}")


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None else form.format(value)


def _notes(result: Result) -> Iterator[str]:
    """What was not measured and why, and what makes a comparison doubtful."""
    if result.references.unscored is not None:
        yield f"NLL of the base: not measured: {result.references.unscored}"
    for candidate in result.candidates:
        if candidate.unscored is not None:
            yield f"NLL of {candidate.name}: not measured: {candidate.unscored}"
        others = result.relaid[candidate.name]
        if others:
            count = plural(others, "prompt")
            yield f"{candidate.name}: its template or tokenizer lays {count} out otherwise than the base's"
        split = result.resplit[candidate.name]
        if split:
            yield f"{candidate.name}: splits {split} of the base's replies otherwise, left out of differences of NLL"


def _differences(result: Result) -> Iterator[str]:
    trust = result.trust
    yield (
        f"what {plural(len(result.asked.prompts), 'prompt')} can tell ({100 * trust.level:.0f} %, paired bootstrap, "
        f"{trust.resamples:,} resamples, seed {trust.seed})"
    )
    found = [one for one in result.differences if one.found.verdict != "equal"]
    rows = [_row(one) for one in found]
    if rows:
        yield from table([("", "", "n", "difference", "interval", ""), *rows], right=frozenset({2, 3}))
    equal = [one for one in result.differences if one.found.verdict == "equal"]
    if equal:
        yield f"equal on every prompt: {'; '.join(_equals(equal, found))}"


def _equals(equal: Sequence[Compared], others: Sequence[Compared]) -> Iterator[str]:
    """Measures that are equal, with the pairs of models where not all are."""
    mixed = {one.measure.name for one in others}
    for title in dict.fromkeys(one.measure.title for one in equal):
        pairs = [one for one in equal if one.measure.title == title]
        of_some = ", ".join(f"{one.of} - {one.against}" for one in pairs)
        yield f"{title} ({of_some})" if pairs[0].measure.name in mixed else title


def _row(one: Compared) -> tuple[str, ...]:
    found = one.found
    form = _signed if not one.measure.rate else _points
    interval = f"{form(found.low)} to {form(found.high)}"
    pair = f"{one.of} - {one.against}"
    return (one.measure.title, pair, f"{found.n}", form(found.value), interval, _verdict(one))


def _verdict(one: Compared) -> str:
    found = one.found
    if found.verdict in ("lower", "higher"):
        return found.verdict
    said = "noise" if found.verdict == "noise" else "too few prompts"
    return said if found.needed is None else f"{said}; some {_rounded(found.needed):,} prompts would tell it"


def _rounded(count: int) -> int:
    """Two digits: it is an estimate."""
    step = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // step) * step


def _signed(value: float) -> str:
    return f"{value:+.4f}"


def _points(value: float) -> str:
    return f"{100 * value:+.0f} %"
