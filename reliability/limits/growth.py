"""Time against size: each command on checkpoints that double in one respect, and the slope in log-log."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reliability.forking import ckpt
from reliability.limits import layouts
from reliability.rows import Row

STEPS = (1, 2, 4, 8)
REPEATS = 2
"""Of each time the shortest counts."""

STEEPEST = 1.3
"""Slope above which a step is taken for more than linear (2 is quadratic; sorting and caches make 1.1)."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "{src}"),
    "layout": ("layout", "{src}"),
    "verify": ("verify", "{src}"),
    "verify --base": ("verify", "{src}", "--base", "{src}", "--level", "headers"),
    "restore-files": ("restore-files", "{src}", "--base", "{src}", "--out", "{out}"),
    "quantize": (
        "quantize", "{src}", "--target", "Linear", "--ignore", "lm_head", "--group-size", "32", "--out", "{out}",
    ),
    "graft": (
        "graft", "{src}", "--from", "{src}", "--tensors", "re:.*norm.weight$", "--max-tensors", "1000000",
        "--out", "{out}",
    ),
    "ignore add": ("ignore", "{src}", "add", "model.nothing", "--out", "{out}"),
    "ignore derive": ("ignore", "{src}", "derive", "--dry-run"),
    "fixup": ("fixup", "{src}", "--base", "{src}", "--dry-run"),
    "manifest verify": ("manifest", "verify", "{out}"),
    "manifest show": ("manifest", "show", "{out}"),
    "card": ("card", "{out}", "--stdout"),
    "ignore --in-place": ("ignore", "{out}", "add", "model.another", "--in-place"),
}  # fmt: skip
"""By what they are called; those that read `{out}` come after those that write it."""

DENSE = tuple(name for name in COMMANDS if not name.startswith("ignore"))
PACKED = tuple(name for name in COMMANDS if name != "quantize")


@dataclass(frozen=True)
class Subject:
    """What doubles. `build` makes a checkpoint of the given size; `sizes` begins with the smallest."""

    name: str
    first: int
    build: Callable[[Path, int], Path]
    commands: tuple[str, ...] = PACKED


def _tensors(folder: Path, size: int) -> Path:
    return layouts.write(folder, layouts.dense(size // layouts.PER_LAYER), layouts.config(size // layouts.PER_LAYER))


def _packed(folder: Path, size: int) -> Path:
    layers = size // 23
    groups = {"group_0": layouts.scheme("Linear")}
    config = layouts.config(layers, quantization_config=layouts.quantization(groups, ["lm_head"]))
    return layouts.write(folder, layouts.packed(layers), config)


def _shards(folder: Path, size: int) -> Path:
    layers = size // 9
    return layouts.write(folder, layouts.packed(layers), layouts.many_groups(1), shards=size)


def _groups(folder: Path, size: int) -> Path:
    return layouts.write(folder, layouts.packed(size), layouts.many_groups(size))


def _ignored(folder: Path, size: int) -> Path:
    return layouts.write(folder, layouts.dense(size // 7), layouts.many_ignored(size // 7, patterns=False))


def _patterns(folder: Path, size: int) -> Path:
    """So many patterns over the same modules: each has to be held against each module, whatever one does."""
    config = layouts.many_ignored(8, patterns=True)
    config["quantization_config"]["ignore"] += [f"re:^model\\.extra\\.{number}$" for number in range(size)]
    return layouts.write(folder, layouts.dense(8), config)


def _side_files(folder: Path, size: int) -> Path:
    _packed(folder, 230)
    for number in range(size):
        (folder / f"part{number % 16}").mkdir(exist_ok=True)
        (folder / f"part{number % 16}" / f"{number}.txt").write_text(str(number))
    return folder


SUBJECTS = (
    Subject("tensors", 9_000, _tensors, DENSE),
    Subject("packed tensors", 9_000, _packed),
    Subject("shards", 250, _shards),
    Subject("config groups", 40, _groups),
    Subject("ignored names", 1_000, _ignored),
    Subject("ignore patterns", 250, _patterns),
    Subject("side files", 500, _side_files),
)


def swept(
    room: Path,
    subjects: Sequence[Subject] = SUBJECTS,
    steps: Sequence[int] = STEPS,
    steepest: float = STEEPEST,
) -> Iterator[Row]:
    """A line for each command and each thing that doubles."""
    for subject in subjects:
        times: dict[str, list[float]] = {name: [] for name in subject.commands}
        sizes = [subject.first * step for step in steps]
        for size in sizes:
            source, out = subject.build(room / "src", size), room / "out"
            for name in subject.commands:
                times[name].append(_seconds(COMMANDS[name], source, out))
            shutil.rmtree(source)
            shutil.rmtree(out, ignore_errors=True)
        for name, seconds in times.items():
            steep = slope(sizes, seconds)
            note = f"slope {steep:.2f}; " + ", ".join(f"{n:,}: {s:.2f} s" for n, s in zip(sizes, seconds, strict=True))
            yield Row(f"{subject.name}: {name}", len(sizes), len(sizes) if steep < steepest else 0, note)


def _seconds(command: tuple[str, ...], source: Path, out: Path) -> float:
    """Processor time; the better of two where it is short. Whether anything is found does not matter here."""
    best = math.inf
    for _ in range(REPEATS):
        if "{out}" in command and command[-2] == "--out":
            shutil.rmtree(out, ignore_errors=True)
        ended = ckpt([word.format(src=source, out=out) for word in command])
        if ended.code not in (0, 1) and not ended.said.startswith("ckpt: refused"):
            raise RuntimeError(f"{command}: {ended.code} {ended.said[-1000:]}")
        best = min(best, ended.seconds)
        if ended.seconds > 3 or "--in-place" in command:
            break
    return best


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """How time grows with size: 1 is in proportion. The steeper of the line through all points and the last doubling,
    since what is constant hides at the beginning what is quadratic at the end."""
    x, y = [math.log(size) for size in sizes], [math.log(max(second, 1e-3)) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    through = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return max(through, (y[-1] - y[-2]) / (x[-1] - x[-2]))
