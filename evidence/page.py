"""`python -m evidence.page`: write the tables of docs/evidence.md from the files in `results/`.

What stands outside the markers is written by hand. A result that is not there is said to be missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import filled
from benchmarks.tables import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence.md"
RESULTS = Path(__file__).with_name("results")
REASONS = Path(__file__).with_name("reasons.json")
NOT_YET = "Not run yet."
Row = Mapping[str, Any]


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(RESULTS)), encoding="utf-8")


def blocks(results: Path) -> dict[str, str]:
    """The text for each pair of markers."""
    small, defects, full, device = (_read(results / f"{name}.json") for name in ("small", "defects", "full", "device"))
    return {
        "machine": machine(full or small),
        "small": small_table(small["rows"]) if small else NOT_YET,
        "commands": command_table(small["rows"]) if small else NOT_YET,
        "defects": defect_tables(defects["rows"]) if defects else NOT_YET,
        "disagreements": disagreements(defects["rows"]) if defects else NOT_YET,
        "memory": memory_table(full) if full else NOT_YET,
        "latency": latency_table(full) if full else NOT_YET,
        "device": device_table(device["rows"]) if device else NOT_YET,
    }


def machine(document: Row | None) -> str:
    """The card and the versions."""
    if not document:
        return NOT_YET
    return table(("what", "version"), document.get("versions", {}).items())


def small_table(rows: Sequence[Row]) -> str:
    """The sound exports."""
    head = (
        "checkpoint",
        "`ckpt verify`",
        "vLLM",
        "to its dense image",
        "to the base",
        "right tokens",
        "the same with drafts",
        "drafts accepted",
    )
    return table(head, (small_cells(row) for row in rows))


def small_cells(row: Row) -> tuple[str, ...]:
    judged = row.get("verify")
    said = "" if judged is None else rules(judged["rules"]) or "nothing found"
    return (
        row["what"],
        said,
        "loads" if row["status"] == "ran" else f"**{row['status']}** {row['error'][:80]}",
        number(row["to_reference"]),
        number(row["to_base"]),
        share(row["follows"]),
        of(row["tokens_equal_with_drafts"]),
        share(row["acceptance"]),
    )


def command_table(rows: Sequence[Row]) -> str:
    """How each was made, and what vLLM took it for."""
    cells = ((row["what"], f"`{row['command']}`", methods(row)) for row in rows)
    return table(("checkpoint", "command", "vLLM's methods"), cells)


def methods(row: Row) -> str:
    """The kinds of quantized modules, each once."""
    found = row.get("methods")
    if not isinstance(found, dict):
        return ""
    kinds = dict.fromkeys(re.sub(r"^[^:]*: ", "", key) for key in found if "KVCache" not in key)
    return "<br>".join(kinds) or "none"


def defect_tables(rows: Sequence[Row]) -> str:
    """A summary, and every defect."""
    counts = Counter(str(row["effect"]) for row in rows)
    summary = table(("vLLM", "defects"), ((SAID.get(kind, kind), str(n)) for kind, n in counts.most_common()))
    head = ("planted", "in", "`ckpt verify`", "headers alone", "vLLM", "apart", "drafts accepted", "what it says")
    return summary + "\n\n" + table(head, (defect_cells(row) for row in rows))


SAID = {
    "raises": "raises",
    "wrong": "loads, and answers wrongly without a word",
    "no drafts": "loads, answers rightly, accepts few drafts or none",
    "nothing": "loads, and nothing is seen",
}


def defect_cells(row: Row) -> tuple[str, ...]:
    return (
        row["what"],
        f"`{row['on']}`",
        rules(row["rules"]),
        rules(row["rules_headers_alone"]) or "-",
        row["effect"] if row["effect"] != "nothing" else "**nothing**",
        number(row["distance"]),
        share(row["acceptance"]),
        message(row),
    )


def message(row: Row) -> str:
    """The error, shortened and safe in a table; and whether it serves without drafts."""
    text = " ".join(str(row["error"]).split())
    text = re.sub(r"(?<=[:.]) (?=.{160})", " ", text)[:160].replace("`", "'")
    without = row.get("status_without_drafts")
    tail = {"ran": "; without drafts it runs", None: ""}.get(without, "; without drafts too")
    return f"`{text}`{tail}" if text else ""


def disagreements(rows: Sequence[Row]) -> str:
    """What `ckpt verify` calls an error and vLLM did not mind, and what it does not find, with the reason."""
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    missed = [row for row in rows if row["effect"] != "nothing" and not has_error(row)]
    harmless = [row for row in rows if row["effect"] == "nothing" and has_error(row)]
    cells = [(row["what"], rules(row["rules"]) or "nothing", row["effect"]) for row in [*missed, *harmless]]
    if not cells:
        return "None."
    lines = zip(cells, [*missed, *harmless], strict=True)
    head = ("planted", "`ckpt verify`", "vLLM 0.24.0", "why")
    return table(head, ((*line, reasons.get(row["name"], "**not explained**")) for line, row in lines))


def has_error(row: Row) -> bool:
    return any(severity == "error" for _, severity in row["rules"])


def memory_table(full: Row) -> str:
    """GiB in the engine, measured and predicted."""
    head = ("build", "on disk, GB", "weights, GiB", "predicted", "difference", "CUDA graphs, GiB", "KV cache, tokens")
    return table(head, (memory_cells(one) for one in full["memory"]))


def memory_cells(one: Row) -> tuple[str, ...]:
    measured, predicted = one["weights_gib"], one["predicted_gib"]
    return (
        one["what"],
        f"{one['disk_gb']:.1f}",
        number(measured, 2),
        number(predicted, 2),
        off(predicted, measured),
        number(one["graphs_gib"], 2),
        f"{one['kv_cache_tokens'] or 0:,.0f}",
    )


def latency_table(full: Row) -> str:
    """Milliseconds a token, measured and predicted, and the bytes behind them."""
    head = (
        "build",
        "streams",
        "ms/token",
        "quartiles",
        "first token, ms",
        "tokens/s",
        "MB a step",
        "these at the card's bandwidth, ms",
        "predicted by bandwidth",
        "difference",
        "predicted by the others",
        "difference",
        "drafts accepted",
    )
    return table(head, (latency_cells(one) for one in full["latency"]))


def latency_cells(one: Row) -> tuple[str, ...]:
    return (
        one["what"],
        str(one["streams"]),
        number(one["ms"], 2),
        f"{one['low']:.2f} to {one['high']:.2f}",
        number(one["first_ms"], 0),
        number(one["tokens_per_second"], 0),
        f"{one['step_mb']:,.0f}",
        number(one["bytes_ms"], 2),
        number(one["predicted_ms"], 2),
        off(one["predicted_ms"], one["ms"]),
        number(one["line_ms"], 2),
        off(one["line_ms"], one["ms"]),
        share(one["acceptance"]),
    )


def device_table(rows: Sequence[Row]) -> str:
    """The kernels of a step by kind, a column for each build and number of streams."""
    head = ("milliseconds a step", *(f"{row['what']}, {streams(row['streams'])}" for row in rows))
    lines = [(kind, *(kernel_cell(row["kinds"][kind]) for row in rows)) for kind in rows[0]["kinds"]]
    lines.append(("**the step, by events**", *(f"**{row['step_ms']:.2f}**" for row in rows)))
    lines.append(("a token on the clock", *(f"{row['clock_ms']:.2f}" for row in rows)))
    return table(head, lines)


def streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def kernel_cell(kind: Row) -> str:
    return f"{kind['ms']:.2f} ({kind['kernels']})" if kind["kernels"] else "-"


def off(predicted: float | None, measured: float | None) -> str:
    """How far the prediction is from the measurement."""
    return f"{100 * (predicted / measured - 1):+.1f} %" if predicted and measured else "-"


def rules(found: Sequence[Sequence[str]]) -> str:
    """Rule ids, errors first; warnings in brackets."""
    errors = [rule for rule, severity in found if severity == "error"]
    others = [f"({rule})" for rule, severity in found if severity == "warning"]
    return " ".join([*errors, *others])


def number(value: float | str | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def of(pair: Sequence[int] | None) -> str:
    return f"{pair[0]} of {pair[1]}" if pair else "-"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


if __name__ == "__main__":
    main()
