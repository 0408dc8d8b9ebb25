"""The MTP head of Qwen3.6-35B-A3B, 1.69 GB, into an export of 21 GB in six shards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.case import Case, Found, Setting, compare, emptied, floor, peak_memory, ratio
from benchmarks.evidence import linked, read_beyond, read_of
from benchmarks.inputs import MTP, make
from benchmarks.inside import inside
from benchmarks.measuring import PLAIN, Contender, ckpt, run
from benchmarks.result import CaseResult, Check, Figure
from benchmarks.stored import places, same

OURS = "ckpt graft-mtp --no-hash --no-verify"
HASHED = "ckpt graft-mtp --no-verify"
INSIDE = "surgery.graft_mtp, no hash"
PEER = "save_mtp_tensors_to_checkpoint"
FLOOR = "cp of the grafted bytes"
FLUSHED = "cp of the grafted bytes, sync"

SHARDS = 6


def _measure(setting: Setting) -> CaseResult:
    work = setting.work
    for prefix, small in (("", setting.quick), ("small-", True)):
        base = make("base", work / f"{prefix}base", small=small, seed=0)
        make("export", work / f"{prefix}export", base=str(base), shards=SHARDS, complete=False, seed=0)
    head = {name: place for name, place in places(work / "base").items() if name.startswith(MTP)}
    nbytes = sum(place.nbytes for place in head.values())
    shards = sorted((work / "export").glob("*.safetensors"))
    contenders = [*_ours(work, nbytes), *_peer(work, nbytes), *_floors(work)]
    found = compare(contenders, setting, [work / "grafted"])
    return CaseResult(
        CASE.name,
        CASE.title,
        f"{len(head)} tensors, {nbytes / 1e9:.2f} GB, into {_total(shards) / 1e9:.1f} GB in {len(shards)} shards",
        found.series,
        (*_figures(found, nbytes), *_untouched(work, shards)),
        tuple(_checks(work, list(head), [path.name for path in shards])),
        found.failed if peers.installed("compressed_tensors") else ("compressed-tensors is not installed: no peer",),
    )


def _ours(work: Path, nbytes: int) -> list[Contender]:
    call = inside("ours.graft_mtp", _arguments(work, "small-"), _arguments(work, ""))
    hashed = _command(work, "out-hashed", "--no-verify")
    return [
        Contender(OURS, "ours", _command(work), emptied(work / "out"), nbytes=2 * nbytes),
        Contender(HASHED, "ours", hashed, emptied(work / "out-hashed"), nbytes=2 * nbytes),
        Contender(INSIDE, "ours", call, emptied(work / "out-inside"), nbytes=2 * nbytes, timed_inside=True),
    ]


def _command(work: Path, out: str = "out", *options: str) -> tuple[str, ...]:
    """Never verifying what was written: the contents of the body are holes, and no RTN of the base's."""
    return ckpt("graft-mtp", work / "export", "--base", work / "base", "--out", work / out, *(options or PLAIN))


def _arguments(work: Path, prefix: str) -> dict[str, str | bool]:
    names = {"src": "export", "base": "base", "out": "out-inside"}
    return {"hashing": False, **{key: str(work / f"{prefix}{name}") for key, name in names.items()}}


def _peer(work: Path, nbytes: int) -> list[Contender]:
    """It writes into the export, so it gets one of its own each time: shards linked, the rest copied."""
    if not peers.installed("compressed_tensors"):
        return []
    arguments = [
        {"base": str(work / f"{prefix}base"), "export": str(work / f"{prefix}out-peer")} for prefix in ("small-", "")
    ]
    call = inside("peers.save_mtp", *arguments)
    return [Contender(PEER, "peer", call, _cloning(work), nbytes=2 * nbytes, timed_inside=True)]


def _cloning(work: Path) -> Callable[[], None]:
    def clone() -> None:
        for prefix in ("", "small-"):
            source, target = work / f"{prefix}export", work / f"{prefix}out-peer"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            for path in source.iterdir():
                (os.link if path.suffix == ".safetensors" else shutil.copy)(path, target / path.name)

    return clone


def _floors(work: Path) -> list[Contender]:
    """A file with just the grafted bytes is left by a first run of ours."""
    run(_command(work))
    new = next(place.path for name, place in places(work / "out").items() if name.startswith(MTP))
    os.link(new, work / "grafted")
    return [
        floor(FLOOR, [], work / "grafted", work / "copy"),
        floor(FLUSHED, [], work / "grafted", work / "copy-flushed", flush=True),
    ]


def _figures(found: Found, nbytes: int) -> Iterator[Figure]:
    ours, call = found.of(OURS), found.of(INSIDE, "in process")
    yield from ratio("time relative to cp, whole process", ours, found.of(FLOOR), 1.2, "at most")
    yield from ratio("time relative to cp and sync, whole process", ours, found.of(FLUSHED), 1.2, "at most")
    yield from ratio("time relative to cp, in process", call, found.of(FLOOR), 1.2, "at most")
    yield from ratio("time relative to cp and sync, in process", call, found.of(FLUSHED), 1.2, "at most")
    yield from ratio("time relative to cp and sync, whole process, with SHA-256", found.of(HASHED), found.of(FLUSHED))
    yield from ratio("times faster than the peer, whole processes", found.of(PEER), ours)
    yield from ratio("times faster than the peer, in process", found.of(PEER, "in process"), call)
    yield from read_beyond("read beyond the grafted bytes", ours, nbytes)
    yield peak_memory("peak memory", [ours, found.of(INSIDE)], 1)


def _untouched(work: Path, shards: list[Path]) -> Iterator[Figure]:
    emptied(work / "out")()
    yield from read_of("read of the export's shards", _command(work), shards)


def _checks(work: Path, head: list[str], shards: list[str]) -> Iterator[Check]:
    writers = {
        "out": "the command",
        "out-hashed": "the command with a hash",
        "out-inside": "the call",
        "out-peer": "the peer",
    }
    for folder, who in writers.items():
        if (work / folder).is_dir():
            yield Check(f"{who} wrote the base's bytes", same(work / "base", work / folder, head))
    yield Check("all shards of the export are hard links", linked(work / "export", work / "out", shards))


def _total(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _disk(quick: bool) -> int:
    """The base's head, the file to copy, and what two commands, the call, the peer and a copy write."""
    return (64 << 20) if quick else 7 * 1_700_000_000


CASE = Case("graft", "MTP head into an export", _disk, _measure)
