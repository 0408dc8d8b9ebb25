"""What a campaign came to, as `reliability/results/fuzzing.json`.

    {"topic": "fuzzing", "title": ..., "rows": [{"what", "tried", "survived", "findings", "note"}]}

`tried` are executions, `survived` those of them after which nothing had to be mended, `findings` what came out of the
others, each mended and kept as an input of the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reliability.fuzzing.campaign import ROOT, Campaign
from reliability.fuzzing.keeping import FOUND
from reliability.fuzzing.target import Target

RESULT = ROOT / "reliability" / "results" / "fuzzing.json"
NOTES = Path(__file__).with_name("findings.json")


def write_outcome(campaign: Campaign, chosen: Sequence[Target]) -> None:
    """Put a row for each target into the result file."""
    RESULT.parent.mkdir(exist_ok=True)
    document = {
        "topic": "fuzzing",
        "title": "Coverage-guided fuzzing of every reader of what others wrote",
        "rows": [_row(campaign, target) for target in chosen],
    }
    RESULT.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(campaign: Campaign, target: Target) -> dict[str, Any]:
    tally = campaign.tally(target)
    told: dict[str, list[str]] = json.loads(NOTES.read_text(encoding="utf-8"))
    kept = target.kept()
    harmful = sum(path.name.startswith(FOUND) for path in kept)
    return {
        "what": target.reads,
        "tried": tally.executions,
        "survived": tally.executions - len(tally.findings),
        "findings": told.get(target.name, []),
        "note": f"{tally.edges} edges, {tally.corpus} inputs in the corpus, {len(kept)} kept ({harmful} did harm once)",
    }
