"""A result as Markdown: what was asked for, then each case with all its contenders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.plot import BESIDE, GROWTH, SCALING, SIDE_BY_SIDE
from benchmarks.result import CaseResult, Figure, Result, Series

VERDICT = {True: "yes", False: "**no**", None: ""}


def markdown(result: Result) -> str:
    """The whole block for docs/performance.md. Raises ValueError for a result of tiny inputs, which says nothing."""
    if result.quick:
        raise ValueError("a result of --quick is for trying things out, not for publishing")
    sections = [_made_on(result), _asked(result), *_plots(result), *(_case(case) for case in result.cases)]
    return "\n\n".join(sections)


def _plots(result: Result) -> Iterator[str]:
    measured = {case.name for case in result.cases if case.series}
    if measured & set(SIDE_BY_SIDE):
        yield f"![Seconds of ours, of peers, and of the bare file system](images/{BESIDE})"
    if SCALING in measured:
        yield f"![Seconds and peak memory over the size of the input](images/{GROWTH})"


def gpu_markdown(data: Mapping[str, Any]) -> str:
    """The block for the result of the GPU benchmark: `machine` and `versions` by name, and `rows`.

    What was asked for comes first, the rest is folded away.
    """
    about = f"{_listed(data['machine'])}. {_listed(data['versions'])}. {data.get('started', '')}".strip()
    asked = [row for row in data["rows"] if row["reached"] is not None]
    others = [row for row in data["rows"] if row["reached"] is None]
    parts = [about, _gpu_table(asked)]
    if others:
        parts += ["<details><summary>All other figures</summary>", _gpu_table(others), "</details>"]
    return "\n\n".join(parts)


def _gpu_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (row["name"], _value(row["value"], row["unit"]), row["target"] or "", VERDICT[row["reached"]], row["note"])
        for row in rows
    ]
    return table(("what", "found", "wanted", "reached", "note"), cells)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table without the columns that are empty in all rows."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    kept = [i for i in range(len(head)) if any(row[i] for row in cells)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([row[i] for i in kept] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _made_on(result: Result) -> str:
    return (
        f"{_listed(result.machine)}. {_listed(result.versions)}. {result.started}, `{result.command}`: medians of "
        f"{result.repeats} runs of each, in turns; fastest runs in parentheses; page cache warm."
    )


def _listed(facts: Mapping[str, Any] | str) -> str:
    return facts if isinstance(facts, str) else ", ".join(f"{name} {value}" for name, value in facts.items())


def _asked(result: Result) -> str:
    rows = [
        (case.title, figure.name, _wanted(figure), _found(figure), VERDICT[figure.reached], figure.reason)
        for case in result.cases
        for figure in case.figures
        if figure.target is not None
    ]
    missed = [
        (case.title, "all", "", "", "not measured", case.skipped or _last_line(case.failed))
        for case in result.cases
        if case.skipped or case.failed
    ]
    head = ("case", "figure", "wanted", "found", "reached", "why not")
    return "### What was asked for\n\n" + table(head, [*rows, *missed])


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""


def _wanted(figure: Figure) -> str:
    return f"{figure.sense} {_value(figure.target or 0, figure.unit)}"


def _found(figure: Figure) -> str:
    found = _value(figure.value, figure.unit)
    return found if figure.by_minima is None else f"{found} ({_number(figure.by_minima)})"


def _case(case: CaseResult) -> str:
    parts = [f"### {case.title}", f"`{case.name}`: {case.input}."]
    if case.skipped or case.failed:
        return f"{parts[0]}\n\nNot measured: {case.skipped or _last_line(case.failed)}."
    parts.append(table(("", "process", "in process", "GB/s", "peak memory"), _contenders(case.series)))
    others = [f"- {figure.name}: {_found(figure)}" for figure in case.figures if figure.target is None]
    proven = [f"- {'proven' if check.passed else '**wrong**'}: {check.name}" for check in case.checks]
    lines = [*others, *proven, *(f"- {_last_line(note)}" for note in case.notes)]
    return "\n\n".join([*parts, "\n".join(lines)]) if lines else "\n\n".join(parts)


def _contenders(series: Sequence[Series]) -> Iterator[tuple[str, ...]]:
    """A row for each contender: its whole process and its call inside side by side."""
    for name in dict.fromkeys(one.name for one in series):
        scopes = {one.scope: one for one in series if one.name == name}
        whole, inside = scopes.get("process"), scopes.get("in process")
        fastest = inside or whole
        speed = f"{fastest.bytes_per_second / 1e9:.2f}" if fastest and fastest.nbytes else ""
        peak = f"{max(whole.peak) / 1e6:,.0f} MB" if whole and whole.peak else ""
        yield name, _timing(whole), _timing(inside), speed, peak


def _timing(series: Series | None) -> str:
    return f"{_number(series.median)} s ({_number(series.minimum)})" if series else ""


def _value(value: float | str, unit: str) -> str:
    return str(value) if isinstance(value, str) else f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    """Three digits that count, never as a power of ten."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"
