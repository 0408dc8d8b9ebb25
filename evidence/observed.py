"""`python -m evidence.observed RUNS.json.xz [VERDICTS.json]`: what the runs of the small model say.

Writes results/small.json and results/defects.json. Distances are means of |difference| of the log-probabilities of the
likeliest tokens that both runs list, along two given prompts, so that both saw the same context everywhere. The noise
is that distance between two runs of one checkpoint.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence.builds import REFERENCES
from evidence.planted import PLANTED

RESULTS = Path(__file__).with_name("results")
DRAFTED, REFERENCE = "+draft", "-reference"
NAN = "NaN"
"""In JSON, which has no such number."""

Runs = Mapping[str, Any]
Row = dict[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Write results/small.json and results/defects.json."""
    runs: Runs = json.loads(lzma.decompress(Path(arguments[0]).read_bytes()))
    verdicts = json.loads(Path(arguments[1]).read_text()) if len(arguments) > 1 else runs.get("(verdicts)", [])
    level = noise(runs)
    versions: Row = next((run["versions"] for run in runs.values() if "versions" in run), {})
    head = {"versions": versions, "noise": level}
    _write("small", head | {"rows": [sound_row(build, runs) for build in runs["(builds)"]]})
    _write("defects", head | {"rows": [defect_row(verdict, runs, level) for verdict in verdicts]})


def sound_row(build: Mapping[str, Any], runs: Runs) -> Row:
    """One export: how far it is from its own dense image and from the base, and what became of its drafts."""
    name = build["name"]
    plain, drafted = runs.get(name, {}), runs.get(name + DRAFTED, {})
    reference = runs.get(name + REFERENCE, {}) if name in REFERENCES else {}
    found = {key: drafted.get(key) for key in ("acceptance", "drafted", "accepted", "draft_methods")}
    return {
        **{key: value for key, value in build.items() if key != "said"},
        "status": plain.get("status", "not run"),
        "error": plain.get("error", ""),
        "methods": plain.get("methods"),
        "follows": plain.get("follows"),
        "to_reference": distance(plain, reference),
        "to_base": distance(plain, runs.get("base", {})),
        "tokens_equal_to_reference": equal_tokens(plain, reference),
        "tokens_equal_with_drafts": equal_tokens(plain, drafted),
        **found,
    }


def defect_row(verdict: Mapping[str, Any], runs: Runs, level: float) -> Row:
    """One defect: what `ckpt verify` says, and what vLLM did, with drafts, and without where that tells more."""
    name = f"defect-{verdict['name']}"
    drafted, plain = runs.get(name + DRAFTED, {}), runs.get(name, {})
    sound, told = runs.get(verdict["on"] + DRAFTED, {}), drafted if _told(drafted) else plain
    apart = distance(told, sound)
    row = {
        **{key: verdict[key] for key in ("name", "what", "on")},
        "rules": verdict["verify"]["rules"],
        "rules_headers_alone": verdict["verify_alone"]["rules"],
        "status": drafted.get("status", "not run"),
        "error": drafted.get("error") or drafted.get("log_tail", "")[-300:],
        "status_without_drafts": plain.get("status"),
        "error_without_drafts": plain.get("error", ""),
        "distance": apart,
        "follows": told.get("follows"),
        "acceptance": drafted.get("acceptance"),
        "sound_acceptance": sound.get("acceptance"),
        "warnings": warnings(drafted, sound),
    }
    found = effect(row, level)
    if apart is not None and math.isnan(apart):
        row["distance"] = NAN
    return row | {"effect": found}


def effect(row: Row, level: float) -> str:
    """One word for what vLLM did: raises, wrong, no drafts, nothing, or not run."""
    if row["status"] in ("not run", "no result"):
        return str(row["status"])
    if row["status"] == "raised":
        return "raises"
    if row["distance"] is None or math.isnan(row["distance"]) or row["distance"] > threshold(level):
        return "wrong"
    lost = row["acceptance"] is not None and row["acceptance"] < 0.9 * (row["sound_acceptance"] or 0)
    return "no drafts" if lost else "nothing"


def threshold(level: float) -> float:
    """The distance above which an answer is called wrong: well above the noise of two runs."""
    return max(4 * level, 0.005)


def noise(runs: Runs) -> float:
    """The largest distance between the runs of one sound export with and without drafts."""
    names = [build["name"] for build in runs["(builds)"]]
    pairs = [distance(runs.get(name, {}), runs.get(name + DRAFTED, {})) for name in names]
    return max((apart for apart in pairs if apart is not None), default=0.0)


def distance(one: Runs, other: Runs) -> float | None:
    """The mean distance of two runs; None where one has no log-probabilities, NaN where they are NaN."""
    if not (_told(one) and _told(other)):
        return None
    both = [
        abs(left[token] - right[token])
        for rows in zip(one["prompt_logprobs"], other["prompt_logprobs"], strict=True)
        for left, right in zip(*rows, strict=True)
        for token in left.keys() & right.keys()
    ]
    return round(sum(both) / len(both), 5) if both else math.nan


def equal_tokens(one: Runs, other: Runs) -> list[int] | None:
    """Generated tokens that are equal, and all."""
    if not (one.get("tokens") and other.get("tokens")):
        return None
    pairs = [pair for rows in zip(one["tokens"], other["tokens"], strict=True) for pair in zip(*rows, strict=True)]
    return [sum(left == right for left, right in pairs), len(pairs)]


def warnings(run: Runs, sound: Runs) -> list[str]:
    """Warnings in vLLM's log that the sound checkpoint does not give, the first few."""
    known = set(sound.get("log", ()))
    return [line[:300] for line in run.get("log", ()) if line.startswith(("WARN", "ERR")) and line not in known][:4]


def _told(run: Runs) -> bool:
    return isinstance(run.get("prompt_logprobs"), list)


def _write(name: str, document: Row) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missing = len(PLANTED) - len(document["rows"]) if name == "defects" else 0
    print(f"{name}: {len(document['rows'])} rows" + (f", {missing} without a verdict" if missing else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
