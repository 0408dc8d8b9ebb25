"""`python -m benchmarks.gpu`: run the sections, print a table, and write the result after each."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Row, told
from benchmarks.machine import machine, versions
from benchmarks.measuring import ROOT

RESULT = ROOT / "benchmarks" / "results" / "gpu.json"
SECTIONS = ("bits", "kernels", "transfers", "pipeline", "checkpoints")


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 where a section failed or a target was missed."""
    options = _parser().parse_args(arguments)
    work = Path(tempfile.mkdtemp(prefix="ckpt-bench-", dir=options.work))
    about = {"machine": {**_gpu(), **machine(work)}, "versions": {**versions(), "triton": version("triton")}}
    rows: list[Row] = []
    for section in options.only or SECTIONS:
        rows += _section(section, work, options)
        document = {**about, "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "rows": _plain(rows)}
        options.result.parent.mkdir(parents=True, exist_ok=True)
        options.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(row.reached is False for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--work", type=Path, help="where files go (default: the temporary folder); 20 GB at most")
    parser.add_argument("--seconds", type=int, default=150, help="that a section may take (default 150)")
    parser.add_argument("--quick", action="store_true", help="small inputs: to try everything in a minute")
    parser.add_argument("--result", type=Path, default=RESULT, help="file to write")
    return parser


def _section(name: str, work: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of a section; what it printed by then where it fails or takes too long."""
    command = [sys.executable, "-m", "benchmarks.gpu.section", name, str(work), "quick" if options.quick else "full"]
    print(f"\n{name}", flush=True)
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=options.seconds, check=False
            ).returncode
            failure = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            failure = f"took more than {options.seconds} s"
        output.seek(0)
        text = output.read().decode(errors="replace")
    rows = list(told(text))
    if failure:
        print(text[-3000:])
        rows.append(Row(f"{name}: {failure}", "failed", reached=False))
    for row in rows:
        print(_line(row), flush=True)
    return rows


def _line(row: Row) -> str:
    value = row.value if isinstance(row.value, str) else f"{row.value:.3f}".rstrip("0").rstrip(".")
    verdict = {None: "", True: "reached", False: "NOT reached"}[row.reached]
    return f"  {value:>12} {row.unit:6} {row.name}  {verdict}  {row.note}".rstrip()


def _plain(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    return [asdict(row) for row in rows]


def _gpu() -> dict[str, str]:
    """Name and driver of the GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    name, driver = said.split(", ")
    return {"GPU": name, "driver": driver}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
