"""How long it takes until a command begins to work, and what it has not imported by then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.case import Case, Found, Setting, compare, seconds
from benchmarks.inputs import make
from benchmarks.measuring import Contender, ckpt, run
from benchmarks.result import CaseResult, Check, Figure

HEAVY = frozenset({"torch", "numba", "transformers", "compressed_tensors", "llmcompressor", "huggingface_hub"})
HELP = "ckpt --help"


def _measure(setting: Setting) -> CaseResult:
    contenders = [
        Contender(HELP, "ours", ckpt("--help")),
        Contender("ckpt verify --help", "ours", ckpt("verify", "--help")),
        Contender("ckpt quantize --help", "ours", ckpt("quantize", "--help")),
        Contender("python -c pass", "reference", (sys.executable, "-c", "pass")),
    ]
    for contender in contenders:
        run(contender.command)
    found = compare(contenders, replace(setting, repeats=4 * setting.repeats))
    given = "no input; imports on the layout of Qwen3.6-35B-A3B in small"
    return CaseResult(CASE.name, CASE.title, given, found.series, tuple(_figures(found)), tuple(_checks(setting.work)))


def _figures(found: Found) -> Iterator[Figure]:
    yield from seconds(found.of(HELP), 0.15)


def _checks(work: Path) -> Iterator[Check]:
    base = make("base", work / "base", small=True, seed=0)
    export = make("export", work / "export", base=str(base), shards=2, complete=False, seed=0)
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("--help",),
        ("inspect", export),
        ("layout", export),
        ("verify", export, "--level", "headers"),
        ("ignore", export, "show"),
        ("ignore", export, "derive", "--dry-run"),
        ("restore-files", export, "--base", base, "--dry-run"),
        ("graft-mtp", export, "--base", base, "--dry-run"),
    )
    for words in commands:
        name = " ".join(str(word) for word in words if not isinstance(word, Path))
        found = sorted(HEAVY & _imported(words))
        yield Check(f"ckpt {name} imports {', '.join(found) or 'nothing heavy'}", not found)


def _imported(words: tuple[str | Path, ...]) -> frozenset[str]:
    """Top-level packages that a command imports, as the interpreter itself tells."""
    command = (sys.executable, "-X", "importtime", *ckpt(*words)[1:])
    lines = run(command, frozenset({0, 1})).output.splitlines()
    modules = (line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:"))
    return frozenset(module.partition(".")[0] for module in modules)


CASE = Case("startup", "Start-up", lambda quick: 64 << 20, _measure)
