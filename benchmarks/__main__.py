"""`python -m benchmarks`: run the cases, one after another, and write the result after each."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.case import Case, Setting
from benchmarks.cases import CASES
from benchmarks.machine import machine, versions
from benchmarks.measuring import ROOT, CommandFailed
from benchmarks.reasons import reasons
from benchmarks.result import CaseResult, Result, save

RESULT = ROOT / "benchmarks" / "results" / "cpu.json"
GIGABYTE = 10**9


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 where a case failed or a check did not pass."""
    options = _parser().parse_args(arguments)
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="ckpt-bench-", dir=options.work))
    disk = options.disk * GIGABYTE if options.disk else shutil.disk_usage(work).free
    setting = Setting(work, 1 if options.quick else options.repeats, disk, options.quick)
    result = Result(
        machine(work),
        versions(),
        shlex.join(["python", "-m", "benchmarks", *arguments]),
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        options.quick,
        setting.repeats,
    )
    path = options.result or (work.parent / f"{work.name}.json" if options.quick or options.only else RESULT)
    try:
        for case in CASES:
            if options.only is None or case.name in options.only:
                result = result.with_case(_measured(case, setting)).with_reasons(reasons())
                save(result, path)
                _tell(result.cases[-1])
    finally:
        shutil.rmtree(work)
    print(f"\nwrote {path}")
    return int(any(case.failed or not all(check.passed for check in case.checks) for case in result.cases))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.partition(": ")[2] if __doc__ else "")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=f"of {', '.join(names)}")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender (default 5)")
    parser.add_argument("--work", type=Path, help="where the inputs go (default: the temporary folder)")
    parser.add_argument("--disk", type=int, metavar="GB", help="what a case may use (default: what is free)")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, once: to try everything in a minute")
    parser.add_argument(
        "--result", type=Path, help=f"file to write (default {RESULT.relative_to(ROOT)} for a whole run)"
    )
    return parser


def _measured(case: Case, setting: Setting) -> CaseResult:
    """Run a case in an empty folder of its own, which is gone afterwards."""
    print(f"\n{case.name}: {case.title}", flush=True)
    needed = case.disk(setting.quick)
    if needed > setting.disk:
        why = f"needs {needed / 1e9:.0f} GB of disk, and may use {setting.disk / 1e9:.0f}"
        return CaseResult(case.name, case.title, "", skipped=why)
    room = Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=setting.work))
    try:
        return case.measure(Setting(room, setting.repeats, setting.disk, setting.quick))
    except CommandFailed as error:
        return CaseResult(case.name, case.title, "", failed=str(error))
    finally:
        shutil.rmtree(room)


def _tell(case: CaseResult) -> None:
    for why in (case.skipped, case.failed, *case.notes):
        print(f"  {why}" if why else "", end="\n" if why else "")
    for series in case.series:
        print(f"  {series.median:9.3f} s  {series.scope:10}  {series.name}")
    for figure in case.figures:
        verdict = {None: "", True: "reached", False: "NOT reached"}[figure.reached]
        print(f"  {figure.value:9.3g} {figure.unit:4} {figure.name}  {verdict}")
    for check in case.checks:
        print(f"  {'proven' if check.passed else 'WRONG'}: {check.name}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
