"""What a campaign came to, as `reliability/results/fuzzing.json`.

`tried` are executions, `survived` those of them after which nothing had to be mended, `findings` what came out of the
others, each mended and kept as an input of the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from reliability.fuzzing.campaign import Campaign
from reliability.fuzzing.keeping import FOUND
from reliability.fuzzing.target import Target
from reliability.rows import Row, save

NOTES = Path(__file__).with_name("findings.json")


def write_outcome(campaign: Campaign, chosen: Sequence[Target]) -> None:
    """Put a row for each target into the result file."""
    told: dict[str, list[str]] = json.loads(NOTES.read_text(encoding="utf-8"))
    save("fuzzing", [_row(campaign, target, told.get(target.name, [])) for target in chosen])


def _row(campaign: Campaign, target: Target, found: Sequence[str]) -> Row:
    tally = campaign.tally(target)
    kept = target.kept()
    harmful = sum(path.name.startswith(FOUND) for path in kept)
    note = f"{tally.edges} edges, {tally.corpus} inputs in the corpus, {len(kept)} kept ({harmful} did harm once)"
    return Row(target.reads, tally.executions, tally.executions - len(tally.findings), note, tuple(found))
