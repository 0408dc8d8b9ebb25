"""Round-to-nearest of one checkpoint, from file to file: ours, llm-compressor's, and the bare file system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.case import Found, Setting, compare, emptied, floor, peak_memory, ratio
from benchmarks.inside import Arguments, inside
from benchmarks.measuring import PLAIN, Contender, ckpt, run
from benchmarks.result import CaseResult, Check, Figure
from benchmarks.stored import same

OURS = "ckpt quantize --no-hash --no-verify"
DEFAULT = "ckpt quantize"
INSIDE = "surgery.quantize, no hash"
HASHED = "surgery.quantize"
PEER = "model_free_ptq"
FLOOR = "cat input, cp output"
FLUSHED = "cat input, cp output, sync"

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Job:
    """What to pack: `base` and a `small` one of the same kind, `options` of the command, `scheme` as keyword arguments
    of the calls (target, bits, group_size), and the share of the speed of `cat` and `cp` that is asked for."""

    name: str
    title: str
    input: str
    base: Path
    small: Path
    options: tuple[str, ...]
    scheme: dict[str, str]
    speed: float | None = None

    def command(self, out: Path, *options: str) -> tuple[str, ...]:
        """Eager maths is what compressed-tensors computes on a CPU."""
        return ckpt("quantize", self.base, *self.options, "--maths", "eager", "--out", out, *options)


def measure(job: Job, setting: Setting) -> CaseResult:
    work = setting.work
    run(job.command(work / "out", *PLAIN))  # compiles what is not cached, and makes what `cp` copies
    read, copied = [job.base / WEIGHTS], work / "out" / WEIGHTS
    contenders = [
        *_ours(job, work),
        *_peer(job, work),
        floor(FLOOR, read, copied, work / "copy"),
        floor(FLUSHED, read, copied, work / "copy-flushed", flush=True),
    ]
    found = compare(contenders, setting, read)
    return CaseResult(
        job.name,
        job.title,
        f"{job.input}: {read[0].stat().st_size / 1e9:.2f} GB in, {copied.stat().st_size / 1e9:.2f} GB out",
        found.series,
        tuple(_figures(found, job)),
        tuple(_checks(work)),
        found.failed if peers.installed("llmcompressor") else ("llmcompressor is not installed: no peer",),
    )


def _ours(job: Job, work: Path) -> list[Contender]:
    """The commands and the calls: as they are, and without what no other does."""
    nbytes, either = _moved(job, work), frozenset({0, 1})
    out, full, call, hashed = (work / name for name in ("out", "out-default", "out-inside", "out-hashed"))
    return [
        Contender(OURS, "ours", job.command(out, *PLAIN), emptied(out), nbytes=nbytes),
        Contender(DEFAULT, "ours", job.command(full), emptied(full), nbytes=nbytes, codes=either),
        Contender(INSIDE, "ours", _call(job, call, hashing=False), emptied(call), nbytes=nbytes, timed_inside=True),
        Contender(HASHED, "ours", _call(job, hashed, hashing=True), emptied(hashed), nbytes=nbytes, timed_inside=True),
    ]


def _call(job: Job, out: Path, *, hashing: bool) -> tuple[str, ...]:
    options: Arguments = {**job.scheme, "maths": "eager", "hashing": hashing}
    small = {**options, "src": str(job.small), "out": f"{out}-small"}
    return inside("ours.quantize", small, {**options, "src": str(job.base), "out": str(out)})


def _peer(job: Job, work: Path) -> list[Contender]:
    if not peers.installed("llmcompressor", "compressed_tensors"):
        return []
    call = inside(
        "peers.model_free_ptq",
        {"src": str(job.small), "out": str(work / "small-out"), **job.scheme},
        {"src": str(job.base), "out": str(work / "out-peer"), **job.scheme},
    )
    nbytes = _moved(job, work)
    return [Contender(PEER, "peer", call, emptied(work / "out-peer"), nbytes=nbytes, timed_inside=True, most=3)]


def _moved(job: Job, work: Path) -> int:
    return sum((folder / WEIGHTS).stat().st_size for folder in (job.base, work / "out"))


def _figures(found: Found, job: Job) -> Iterator[Figure]:
    call, hashed, peer = (found.of(name, "in process") for name in (INSIDE, HASHED, PEER))
    yield from ratio("times faster than model_free_ptq, in process, no hash", peer, call, 20)
    yield from ratio("times faster than model_free_ptq, in process", peer, hashed)
    yield from ratio("times faster than model_free_ptq, whole processes", found.of(PEER), found.of(DEFAULT))
    yield from ratio("speed relative to cat and cp, in process, no hash", found.of(FLOOR), call, job.speed)
    yield from ratio("speed relative to cat, cp and sync, in process, no hash", found.of(FLUSHED), call)
    yield from ratio("speed relative to cat and cp, in process", found.of(FLOOR), hashed)
    yield from ratio("speed relative to cat and cp, whole process", found.of(FLOOR), found.of(DEFAULT))
    yield peak_memory("peak memory", [found.of(name) for name in (OURS, DEFAULT, INSIDE, HASHED)], 1)


def _checks(work: Path) -> Iterator[Check]:
    others = (work / name for name in ("out-default", "out-inside", "out-hashed"))
    yield Check("all of ours write the same tensors", all(same(work / "out", other) for other in others))
    if (work / "out-peer").is_dir():
        yield Check("equal to model_free_ptq's, bit for bit", same(work / "out", work / "out-peer"))
