"""`python -m evidence.measured FULL.json.xz [HEADERS]`: what the servers of the full-size builds say.

Writes results/full.json: memory and time a token as measured, beside what `ckpt inspect` predicts from the headers,
which `evidence.full --headers` writes to HEADERS. A time is predicted twice: by the card's measured bandwidth, where
what does not depend on bytes is that of the first server at as many streams; and by the line through the others.
"""

from __future__ import annotations

import json
import lzma
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence.full import BUILDS
from evidence.full import main as build_headers
from evidence.observed import RESULTS

GIB = 1 << 30
CONTEXT = 192
"""Tokens in the cache halfway through an answer: 128 of the prompt and half of 128."""

Row = dict[str, Any]
WHAT = {one.name: one.what for one in BUILDS}


def main(arguments: Sequence[str]) -> None:
    """Write results/full.json."""
    found: Mapping[str, str] = json.loads(lzma.decompress(Path(arguments[0]).read_bytes()))
    headers = Path(arguments[1] if len(arguments) > 1 else "/tmp/evidence-headers")
    build_headers(headers, headers=True)
    servers = json.loads(found["servers.json"])
    bandwidth = json.loads(found.get("bandwidth.json") or "{}")
    latency = json.loads(found["latency.json"]) if found.get("latency.json") else {"cells": [], "candidates": []}
    document = {
        "versions": versions(found, latency, bandwidth),
        "commands": {one.name: one.command for one in BUILDS},
        "served_with": servers["common"],
        "bandwidth": bandwidth,
        "memory": [memory_row(server, headers) for server in servers["servers"]],
        "latency": latency_rows(latency, servers["servers"], headers, bandwidth),
        "servers": servers["servers"],
        "latency_document": latency,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "full.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def versions(found: Mapping[str, str], latency: Row, bandwidth: Row) -> dict[str, str]:
    """The card, its driver and bandwidth, and the engine."""
    driver = re.search(r"Driver Version: (\S+)", found.get("machine.txt", ""))
    engine = next((one["engine_version"] for one in latency["candidates"] if one["engine_version"]), "0.24.0")
    rates = {
        f"memory, {key.partition('_')[0]}": f"{value / 1e12:.2f} TB/s"
        for key, value in bandwidth.items()
        if "bytes" in key
    }
    known = {"GPU": bandwidth.get("device", ""), "driver": driver[1] if driver else "", "vLLM": engine}
    return known | {"PyTorch": bandwidth.get("torch", "")} | rates


def memory_row(server: Row, headers: Path) -> Row:
    """One server: GiB of weights as vLLM says, and as predicted, the MTP head included where it drafts."""
    costs = inspect(headers / server["build"])
    memory = costs["memory"]
    drafted = memory["mtp"] if server["arguments"] else 0
    return {
        "name": server["name"],
        "what": WHAT[server["build"]] + (", MTP k=1" if server["arguments"] else ""),
        "disk_gb": costs["disk"] / 1e9,
        "predicted_gib": (memory["total"] + drafted) / GIB,
        **{key: server[key] for key in ("weights_gib", "graphs_gib", "kv_cache_tokens", "ready_seconds")},
    }


def latency_rows(latency: Row, servers: Sequence[Row], headers: Path, bandwidth: Row) -> list[Row]:
    """One row for each cell and candidate of the run."""
    rate = bandwidth.get("read_bytes_per_second") or bandwidth.get("copy_bytes_per_second") or 4.8e12
    by_name = {server["name"]: server for server in servers}
    rows: list[Row] = []
    for cell in latency["cells"]:
        overhead: float | None = None
        for result in sorted(cell["results"], key=lambda one: [*by_name].index(one["candidate"])):
            if not result["token_ms"]:
                continue
            row = latency_row(cell, result, by_name[result["candidate"]], headers, rate)
            overhead = row["ms"] - row["bytes_ms"] if overhead is None else overhead
            row["predicted_ms"] = predicted(row, overhead)
            rows.append(row)
    return [row | {"line_ms": by_others(row, rows)} for row in rows]


def latency_row(cell: Row, result: Row, server: Row, headers: Path, rate: float) -> Row:
    """What was measured, and the bytes of a token at the card's bandwidth. A stream's token takes a step's time."""
    streams = cell["streams"]
    speculation = result["speculation"] if server["arguments"] else None
    words = ["--streams", str(streams)]
    if speculation:
        words += ["--speculative", "1", "--acceptance", str(speculation["acceptance"])]
    costs = inspect(headers / server["build"], *words)
    step = costs["speculative_decoding" if speculation else "decoding"]
    return {
        "name": result["candidate"],
        "what": WHAT[server["build"]] + (", MTP k=1" if server["arguments"] else ""),
        "streams": streams,
        "ms": result["token_ms"]["median"],
        "low": result["token_ms"]["low"],
        "high": result["token_ms"]["high"],
        "first_ms": (result["first_ms"] or {}).get("median"),
        "tokens_per_second": (result["tokens_per_second"] or {}).get("median"),
        "step_mb": step["step_bytes"] / 1e6,
        "emitted": step["emitted"],
        "bytes_ms": 1000 * step["step_bytes"] / rate,
        "acceptance": speculation["acceptance"] if speculation else None,
    }


def predicted(row: Row, overhead: float) -> float | None:
    """Milliseconds a token; of drafting, whose own overhead is not known, nothing is predicted."""
    return None if row["acceptance"] is not None else float(overhead + row["bytes_ms"])


def by_others(row: Row, rows: Sequence[Row]) -> float | None:
    """Milliseconds at this row's bytes, on the line through the other rows without drafts of as many streams."""
    alike = [one for one in rows if one["acceptance"] is None and one["streams"] == row["streams"]]
    others = [(one["step_mb"], one["ms"]) for one in alike if one is not row]
    if row["acceptance"] is not None or len({mb for mb, _ in others}) < 2:
        return None
    slope, start = statistics.linear_regression(*zip(*others, strict=True))
    return start + slope * float(row["step_mb"])


def inspect(folder: Path, *words: str) -> Row:
    """What `ckpt inspect` says of the costs of one checkpoint, text alone."""
    asked = ["inspect", str(folder), "--text-only", "--context", str(CONTEXT), *words, "--costs", "--json"]
    done = subprocess.run([sys.executable, "-m", "ckpt", *asked], capture_output=True, text=True, check=True)
    found: Row = json.loads(done.stdout)["checkpoints"][0]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
