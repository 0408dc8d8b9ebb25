"""SECURITY.md and the threat model: whatever they rest on is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
THREATS = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROOMS = "checkpoint|surgery|verify|schemas|cards|costs|compare|serving|fidelity|latency|ckpt|tests|reliability|docs"
PATH = re.compile(rf"`((?:{ROOMS})/[\w./*-]*)`")


@pytest.mark.parametrize("path", sorted(set(PATH.findall(THREATS + SECURITY))))
def test_every_file_that_is_named_is_there(path: str) -> None:
    assert list(ROOT.glob(path))


def test_every_attack_names_code_that_stops_it_and_a_test_that_shows_it() -> None:
    rows = [line.split("|")[1:-1] for line in THREATS.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 15
    assert [attack for attack, _, shown in rows if "`tests/" not in shown] == []
    assert [attack for attack, stopped, _ in rows if not PATH.search(stopped)] == []


@pytest.mark.parametrize("name, text", [("SECURITY.md", SECURITY), ("docs/threat-model.md", THREATS)])
def test_links_lead_somewhere_and_no_address_was_invented(name: str, text: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert all(((ROOT / name).parent / target).exists() for target in targets)
    assert "@" not in re.sub(r"`[^`]*`", "", text)
