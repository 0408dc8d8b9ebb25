"""Memory against its budget: the peak of whole processes on layouts that would fill it.

`--memory` is a budget of buffers. What headers and libraries take is apart: it is measured by the same command with
`--dry-run`, and by the same command on a small checkpoint; the larger of the two counts. There are more workers than
any budget has room for, so that nothing else bounds them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import CommandFailed, Run, ckpt, run
from reliability.limits import layouts
from reliability.rows import Row

TOLERANCE = 1.10
"""Of the budget, at most, beyond what the command needs without any buffer."""

MIB = 1 << 20
ANY = frozenset({0, 1, 3})


@dataclass(frozen=True)
class Layout:
    """A bad layout, and the commands that are tried on it."""

    name: str
    build: Callable[[Path], Path]
    commands: tuple[tuple[str, ...], ...]
    budgets: tuple[int, ...] = ()
    small: Callable[[Path], Path] | None = None


INSPECT = ("inspect", "{src}")
VERIFY = ("verify", "{src}")
GRAFT = ("graft", "{src}", "--from", "{src}", "--tensors", "model.norm.weight", "--no-verify", "--out", "{out}")
RESTORE = ("restore-files", "{src}", "--base", "{src}", "--no-verify", "--out", "{out}")
IGNORE = ("ignore", "{src}", "add", "model.nothing", "--no-verify", "--out", "{out}")
MANIFEST = ("manifest", "verify", "{out}")
COMPLETE = ("manifest", "complete", "{out}")
QUANTIZE = (
    "quantize", "{src}", "--target", "re:.*big$", "--group-size", "128", "--workers", "200", "--no-verify",
    "--out", "{out}",
)  # fmt: skip
CHANNEL = tuple("channel" if word == "128" else word for word in QUANTIZE)
FULL = ("verify", "{out}", "--base", "{src}", "--level", "full")


def _big(shape: Sequence[int], dtype: str = "BF16") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        shapes = {**layouts.dense(1), "model.big.weight": (dtype, shape)}
        return layouts.write(folder, shapes, layouts.config(1), shards=len(shapes))

    return build


def _tiny(folder: Path) -> Path:
    shapes = {f"model.layers.{n}.weight": ("BF16", (2,)) for n in range(500_000)}
    return layouts.write(folder, {"model.norm.weight": ("BF16", (64,)), **shapes}, layouts.config(1), shards=4)


def _empty_but_packed(folder: Path) -> Path:
    groups = {"group_0": layouts.scheme("Linear")}
    config = layouts.config(1, quantization_config=layouts.quantization(groups, ["lm_head"]))
    return layouts.write(folder, layouts.packed(1), config)


def _shards(folder: Path) -> Path:
    return layouts.write(folder, layouts.packed(435), layouts.many_groups(1), shards=10_000)


BUDGETS = (64 * MIB, 256 * MIB)

LAYOUTS = (
    Layout("one tensor of 50 GB", _big((400_000, 62_500)), (INSPECT, VERIFY, RESTORE, GRAFT, MANIFEST), BUDGETS),
    Layout("one tensor of 2 GB", _big((16_384, 65_536)), (QUANTIZE, FULL, COMPLETE, MANIFEST), BUDGETS),
    Layout("one F32 tensor of 512 MB", _big((2_048, 65_536), "F32"), (QUANTIZE, FULL), BUDGETS),
    Layout("rows of 4 M elements", _big((64, 1 << 22)), (QUANTIZE, FULL), BUDGETS),
    Layout("one row of 2^31 elements", _big((1, 1 << 31)), (INSPECT, VERIFY, QUANTIZE, RESTORE), BUDGETS),
    Layout("2^24 rows of 32 elements", _big((1 << 24, 32)), (CHANNEL, FULL), BUDGETS),
    Layout("500,000 tensors of 4 bytes", _tiny, (INSPECT, VERIFY, RESTORE, GRAFT, MANIFEST), BUDGETS[:1]),
    Layout("10,000 shards", _shards, (INSPECT, VERIFY, IGNORE, MANIFEST), BUDGETS[:1], _empty_but_packed),
)

SHORT = (Layout("one tensor of 256 MB", _big((2_048, 65_536)), (QUANTIZE,), BUDGETS[:1]),)


def measured(room: Path, chosen: Sequence[Layout] = LAYOUTS) -> Iterator[Row]:
    """A line for each layout and command."""
    for layout in chosen:
        small = (layout.small or _big((64, 128), "F32" if "F32" in layout.name else "BF16"))(room / "small")
        source, out = layout.build(room / "src"), room / "out"
        for command in layout.commands:
            writes, what = "{out}" in command and command[-2] == "--out", f"{_called(command)}: {layout.name}"
            budgets = layout.budgets if writes else (0,)
            floor = _peak(command, small, room / "small out", 0).peak
            if writes:
                floor = max(floor, _peak((*command, "--dry-run"), source, out, 0).peak)
            yield _judged(what, budgets, [_peak(command, source, out, budget) for budget in budgets], floor)
        for folder in (source, small, room / "small out"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)


def _called(command: Sequence[str]) -> str:
    if command is FULL:
        return "verify --level full"
    return " ".join(command[:2]) if command[0] == "manifest" else command[0]


def _peak(command: Sequence[str], source: Path, out: Path, budget: int) -> Run:
    words = [word.format(src=source, out=out) for word in command]
    if "{out}" in command and "--out" in command:
        shutil.rmtree(out, ignore_errors=True)
    done = run(ckpt(*words, *(("--memory", str(budget)) if budget else ())), ANY)
    if "Traceback" in done.output or (done.code == 3 and "--memory" not in done.output):
        raise CommandFailed(f"{words}: {done.output[-2000:]}")
    return done


def _judged(what: str, budgets: Sequence[int], found: Sequence[Run], floor: int) -> Row:
    """Where there is no budget, a checkpoint of any size may take what the rest of the row says."""
    told, held = [], 0
    for budget, one in zip(budgets, found, strict=True):
        over = one.peak - floor
        refused = one.code == 3
        held += refused or not budget or over <= TOLERANCE * budget
        asked = f"{budget // MIB} MiB" if budget else "no budget"
        told.append(f"{asked}: {'refused' if refused else f'{over / MIB:,.0f} MiB over {floor / MIB:,.0f}'}")
    return Row(what, len(found), held, "; ".join(told))
