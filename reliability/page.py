"""`python -m reliability.page`: write the tables of docs/reliability.md from the files in `results/`.

Each file is what `reliability.rows` describes. What stands outside the markers is written by hand; a topic without a
pair of markers, or without a result, is an error or is said to be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import filled
from benchmarks.tables import table
from reliability.rows import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"

TOPICS = ("crashes", "disks", "hostile", "limits", "reproducible", "fuzzing")
"""Each with its own harness and its own section of the page."""

NOT_YET = "Not run yet."

MANY = 24
"""Rows that are shown as they are."""

HEAD = ("what", "tried", "held", "note")

Row = Mapping[str, Any]


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(RESULTS)), encoding="utf-8")


def blocks(results: Path) -> dict[str, str]:
    """The text for each pair of markers, and that of the summary."""
    read = {topic: _rows(results / f"{topic}.json") for topic in TOPICS}
    tables = {topic: _table(rows) for topic, rows in read.items()}
    return {"summary": _summary(read), **tables, "fuzzing": tables["fuzzing"] + _mended(read["fuzzing"])}


def _rows(path: Path) -> list[Row]:
    """The rows of a result; none where it is not there. Raises ValueError for a file that is none."""
    if not path.is_file():
        return []
    document = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Row] = document["rows"] if isinstance(document, dict) else document
    for row in rows:
        lacking = {"what", "tried", "survived"} - row.keys()
        if lacking:
            raise ValueError(f"{path.name}: a row lacks {', '.join(sorted(lacking))}: {row}")
    return rows


def _summary(read: Mapping[str, list[Row]]) -> str:
    cells = [(topic, *_counts(rows), "" if rows else NOT_YET) for topic, rows in read.items()]
    return table(("topic", "tried", "held", ""), cells)


def _counts(rows: Iterable[Row]) -> tuple[str, str]:
    """Sums, the second in bold where it is not the first."""
    tried, survived = (sum(int(row[key] or 0) for row in rows) for key in ("tried", "survived"))
    return f"{tried:,}", f"{survived:,}" if survived == tried else f"**{survived:,}**"


def _table(rows: list[Row]) -> str:
    """All rows; of many the sums of each kind, which stands before a colon, with the rows folded away behind them."""
    if not rows:
        return NOT_YET
    whole = table(HEAD, ((row["what"], *_counts([row]), row.get("note", "")) for row in rows))
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(str(row["what"]).partition(": ")[0], []).append(row)
    if len(rows) <= MANY or len(kinds) == len(rows):
        return whole
    sums = table(HEAD[:3], ((kind, *_counts(group)) for kind, group in kinds.items()))
    return f"{sums}\n\n<details><summary>All {len(rows)} rows</summary>\n\n{whole}\n\n</details>"


def _mended(rows: Iterable[Row]) -> str:
    """What the inputs that did harm showed, by reader."""
    lines = [f"- {row['what']}: {'; '.join(row['findings'])}." for row in rows if row.get("findings")]
    return "\n".join(["\n\nFound, and mended:\n", *lines]) if lines else ""


if __name__ == "__main__":
    main()
