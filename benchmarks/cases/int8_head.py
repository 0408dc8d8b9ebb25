"""The dense lm_head of an export of 21 GB in six shards to INT8: one shard is rewritten, five are linked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.case import Case, Found, Setting, compare, emptied, floor, peak_memory, ratio
from benchmarks.evidence import linked, read_beyond, read_of, written_beyond
from benchmarks.inputs import HEAD, make
from benchmarks.inside import Arguments, inside
from benchmarks.measuring import PLAIN, Contender, ckpt, run
from benchmarks.result import CaseResult, Check, Figure
from benchmarks.stored import places, same

OURS = "ckpt int8-head --no-hash --no-verify"
INSIDE = "surgery.int8_head, no hash"
FLOOR = "cat and cp of that shard"
FLUSHED = "cat and cp of that shard, sync"

SHARDS = 6


def _measure(setting: Setting) -> CaseResult:
    work = setting.work
    base = make("base", work / "base", small=setting.quick, seed=0)
    options = {"base": str(base), "shards": SHARDS, "complete": False, "seed": 1, "head_on_disk": True}
    export = make("export", work / "export", **options)
    small = make("base", work / "small-base", small=True, seed=0)
    make("export", work / "small-export", **options | {"base": str(small)})
    old = places(export)[HEAD].path
    run(_command(work))
    new = work / "out" / old.name
    found = compare(_contenders(work, old, new), setting, [old])
    others = sorted(path for path in export.glob("*.safetensors") if path != old)
    total = sum(path.stat().st_size for path in (old, *others))
    return CaseResult(
        CASE.name,
        CASE.title,
        f"the head's shard of {old.stat().st_size / 1e9:.2f} GB, in an export of {total / 1e9:.1f} GB",
        found.series,
        tuple(_figures(found, work, old, others)),
        tuple(_checks(work, old, others)),
    )


def _command(work: Path) -> tuple[str, ...]:
    return ckpt("int8-head", work / "export", "--out", work / "out", *PLAIN)


def _contenders(work: Path, old: Path, new: Path) -> list[Contender]:
    nbytes = old.stat().st_size + new.stat().st_size
    arguments: list[Arguments] = [
        {"src": str(work / f"{prefix}export"), "out": str(work / f"{prefix}out-inside"), "hashing": False}
        for prefix in ("small-", "")
    ]
    copied = work / "copied"
    copied.hardlink_to(new)  # keeps its bytes while `out` comes and goes
    return [
        Contender(OURS, "ours", _command(work), emptied(work / "out"), nbytes=nbytes),
        Contender(
            INSIDE,
            "ours",
            inside("ours.int8_head", *arguments),
            emptied(work / "out-inside"),
            nbytes=nbytes,
            timed_inside=True,
        ),
        floor(FLOOR, [old], copied, work / "copy"),
        floor(FLUSHED, [old], copied, work / "copy-flushed", flush=True),
    ]


def _figures(found: Found, work: Path, old: Path, others: list[Path]) -> Iterator[Figure]:
    ours, call, new = found.of(OURS), found.of(INSIDE, "in process"), work / "out" / old.name
    yield from ratio("speed relative to cat and cp, in process", found.of(FLOOR), call)
    yield from ratio("speed relative to cat, cp and sync, in process", found.of(FLUSHED), call)
    yield from read_beyond("read beyond the head's shard", ours, old.stat().st_size)
    yield from written_beyond("written beyond the new shard", ours, new.stat().st_size)
    emptied(work / "out")()
    yield from read_of("read of the other shards", _command(work), others)
    yield peak_memory("peak memory", [ours, found.of(INSIDE)], 1)


def _checks(work: Path, old: Path, others: list[Path]) -> Iterator[Check]:
    kept = [name for name, place in places(work / "export").items() if place.path == old and name != HEAD]
    yield Check("the other tensors of the shard kept their bytes", same(work / "export", work / "out", kept))
    yield Check(
        "all other shards are hard links", linked(work / "export", work / "out", [path.name for path in others])
    )
    yield Check("the command and the call write the same head", _same_head(work))


def _same_head(work: Path) -> bool:
    parts = [name for name in places(work / "out") if name.startswith("lm_head.")]
    return len(parts) == 3 and same(work / "out", work / "out-inside", parts)


def _disk(quick: bool) -> int:
    """The base's MTP head, the shard, and what a first run, the command, the call and a copy write."""
    return (64 << 20) if quick else 1_700_000_000 + 5 * 3_600_000_000


CASE = Case("int8-head", "INT8 head of an export", _disk, _measure)
