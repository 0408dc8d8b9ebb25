"""docs/reliability.md: what the committed results say, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reliability import page
from reliability.rows import RESULTS, Row, save


def written(folder: Path, topic: str, rows: Any) -> Path:
    (folder / f"{topic}.json").write_text(json.dumps(rows))
    return folder


def test_the_committed_page_is_what_the_committed_results_give() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.blocks(RESULTS)) == text


def test_what_did_not_hold_is_in_bold_and_a_missing_topic_is_said_to_be(tmp_path: Path) -> None:
    rows = [{"what": "a|b", "tried": 1000, "survived": 999, "note": "once"}, {"what": "c", "tried": 2, "survived": 2}]
    made = page.blocks(written(tmp_path, "disks", {"topic": "disks", "rows": rows}))
    assert "| a\\|b | 1,000 | **999** | once |" in made["disks"]
    assert "| disks | 1,002 | **1,001** |" in made["summary"]
    assert made["limits"] == page.NOT_YET


def test_many_rows_are_summed_by_kind(tmp_path: Path) -> None:
    rows = [{"what": f"killed: {number}", "tried": 3, "survived": 3} for number in range(40)]
    made = page.blocks(written(tmp_path, "crashes", {"rows": rows}))["crashes"]
    assert "| killed | 120 | 120 |" in made
    assert "All 40 rows" in made


def test_a_row_without_its_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks survived"):
        page.blocks(written(tmp_path, "limits", {"rows": [{"what": "x", "tried": 1}]}))


def test_what_fuzzing_found_is_listed_by_reader(tmp_path: Path) -> None:
    rows = [
        {"what": "x", "tried": 2, "survived": 2, "findings": ["a loop", "a hang"]},
        {"what": "y", "tried": 1, "survived": 1},
    ]
    made = page.blocks(written(tmp_path, "fuzzing", {"rows": rows}))["fuzzing"]
    assert made.endswith("Found, and mended:\n\n- x: a loop; a hang.")
    assert "mended" not in page.blocks(written(tmp_path, "fuzzing", {"rows": rows[1:]}))["fuzzing"]


def test_what_a_harness_saves_is_what_the_page_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reliability import rows

    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    save("fuzzing", [Row("x", 2, 2, "fine")])
    assert "| x | 2 | 2 | fine |" in page.blocks(tmp_path)["fuzzing"]
