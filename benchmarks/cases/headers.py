"""Commands that read headers and documents alone, on a quantized Qwen3.6-35B-A3B of 93,000 tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.case import Case, Found, Setting, compare, emptied, seconds
from benchmarks.inputs import make
from benchmarks.measuring import Contender, ckpt, python, run
from benchmarks.result import CaseResult, Check, Figure
from benchmarks.stored import places

SHARDS = 26
TARGETED = ("ckpt ignore show", "ckpt ignore derive", "ckpt restore-files", "ckpt verify")
NOTHING = "python -c pass"
HEADERS = "safetensors.safe_open of all shards"


def _measure(setting: Setting) -> CaseResult:
    work = setting.work
    base = make("base", work / "base", small=setting.quick, seed=0)
    export = make("export", work / "export", base=str(base), shards=SHARDS, complete=True, seed=0)
    _alter(export)
    contenders = list(_contenders(work))
    for contender in contenders:
        contender.prepare()
        run(contender.command, contender.codes)
    found = compare(contenders, setting)
    stored = places(export)
    total = sum(place.nbytes for place in stored.values())
    return CaseResult(
        CASE.name,
        CASE.title,
        f"{len(stored):,} tensors, {total / 1e9:.1f} GB in {SHARDS} shards",
        found.series,
        tuple(_figures(found)),
        tuple(_checks(work)),
    )


def _alter(export: Path) -> None:
    """Side files as exporters leave them: one lost, one written anew; and an ignore list with a stale entry."""
    (export / "vocab.json").unlink()
    tokenizer = export / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), sort_keys=True))
    path = export / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["ignore"].append("model.language_model.layers.0.linear_attn.in_proj_b")
    path.write_text(json.dumps(config, indent=2))


def _contenders(work: Path) -> Iterator[Contender]:
    """What is written is not verified against the base: contents are holes here."""
    export, base = work / "export", work / "base"
    ignore, files = work / "out-ignore", work / "out-files"
    derive = ("ignore", export, "derive", "--out", ignore)
    restore = ("restore-files", export, "--base", base, "--out", files)
    either = frozenset({0, 1})
    yield Contender("ckpt ignore show", "ours", ckpt("ignore", export, "show"))
    yield Contender("ckpt ignore derive", "ours", ckpt(*derive, "--no-verify"), emptied(ignore))
    yield Contender("ckpt ignore derive, then verify", "ours", ckpt(*derive), emptied(ignore), codes=either)
    yield Contender("ckpt restore-files", "ours", ckpt(*restore, "--no-verify"), emptied(files))
    yield Contender("ckpt verify", "ours", ckpt("verify", export, "--level", "headers"), codes=either)
    yield Contender("ckpt inspect", "ours", ckpt("inspect", export))
    yield Contender(HEADERS, "reference", python("benchmarks.peers", export))
    yield Contender(NOTHING, "reference", (*python("")[:1], "-c", "pass"))


def _figures(found: Found) -> Iterator[Figure]:
    for name in TARGETED:
        yield from seconds(found.of(name), 1)


def _checks(work: Path) -> Iterator[Check]:
    restored, base = work / "out-files", work / "base"
    names = ("vocab.json", "tokenizer_config.json")
    equal = all((restored / name).read_bytes() == (base / name).read_bytes() for name in names)
    yield Check("restore-files wrote the base's files", equal)
    derived = json.loads((work / "out-ignore" / "config.json").read_text())["quantization_config"]["ignore"]
    yield Check("ignore derive wrote a list of fewer than 20 entries", 0 < len(derived) < 20)


def _disk(quick: bool) -> int:
    return (64 << 20) if quick else 3_000_000_000


CASE = Case("headers", "Headers and documents", _disk, _measure)
