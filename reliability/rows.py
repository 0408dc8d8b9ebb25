"""What a harness found, as a file in `results/`.

The file is `{"topic": ..., "rows": [{"what": ..., "tried": n, "survived": n, "note": ...}, ...]}`: of each subject how
often it was tried, how often what was promised held, what a reader should know beside, what was found (`findings`), and
a `kind` by which a harness knows it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    what: str
    tried: int
    survived: int
    note: str = ""
    findings: tuple[str, ...] = ()
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.survived:>5} of {self.tried:<5} {self.what}" + (f" ({self.note})" if self.note else "")


def saved(topic: str) -> list[Row]:
    """The rows of `topic` as they were written last."""
    path = RESULTS / f"{topic}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return [Row(**{**row, "findings": tuple(row.get("findings", ()))}) for row in rows]


def save(topic: str, rows: Iterable[Row]) -> Path:
    """Write the rows of `topic`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{topic}.json"
    document = {"topic": topic, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
