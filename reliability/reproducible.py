"""One input and one command make one sequence of bytes, wherever and however it runs.

`python -m reliability.reproducible [--short]` writes `results/reproducible.json`; the short form, for tests, writes
nothing and tries one command. The Hub is the small one of the tests, on loopback; without it that row is left out.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from reliability.crashes.inputs import prepare
from reliability.disks.mounts import can_mount, memory
from reliability.disks.state import contents
from reliability.forking import ckpt, warm_up
from reliability.rows import Row, save

ROOT = Path(__file__).parents[1]

COMMANDS: dict[str, tuple[str, ...]] = {
    "quantize": ("quantize", "{inputs}/base", "--preset", "experts-int4-g32"),
    "quantize to 8 bits, asymmetric": (
        "quantize", "{inputs}/base", "--target", "re:.*mlp\\.experts\\.", "--bits", "8", "--group-size", "32",
        "--asymmetric",
    ),
    "int8-head": ("int8-head", "{inputs}/export"),
    "graft": ("graft", "{inputs}/export", "--from", "{inputs}/other", "--tensors", "re:.*norm.weight$"),
    "fixup": ("fixup", "{inputs}/headless", "--base", "{inputs}/base"),
}  # fmt: skip

BRIEFLY = {"quantize": COMMANDS["quantize"]}

MANIFEST = "ckpt.manifest.json"
Folder = Mapping[str, object]


def main() -> int:
    """Exit code 1 where bytes differ."""
    short = "--short" in sys.argv[1:]
    warm_up()
    rows = []
    with tempfile.TemporaryDirectory(prefix="ckpt-reproducible-") as folder:
        for row in compared(Path(folder), BRIEFLY if short else COMMANDS):
            print(row, flush=True)
            rows.append(row)
    if not short:
        save("reproducible", rows)
    return int(any(row.survived < row.tried for row in rows))


def compared(room: Path, commands: Mapping[str, tuple[str, ...]] = COMMANDS) -> Iterator[Row]:
    """A row for each circumstance, over all commands."""
    inputs = prepare(room / "inputs")
    expected = {name: made(words, inputs, room / "out") for name, words in commands.items()}

    def row(what: str, differing: Mapping[str, list[str]], note: str = "whole folder, manifest too") -> Row:
        wrong = [f"{name}: {', '.join(files[:4])}" for name, files in differing.items() if files]
        return Row(what, len(differing), len(differing) - len(wrong), "; ".join([note, *wrong]))

    def all_of(make: Callable[[tuple[str, ...]], Folder], apart: tuple[str, ...] = ()) -> dict[str, list[str]]:
        return {name: unlike(expected[name], make(words), apart) for name, words in commands.items()}

    yield row("the same command again", all_of(lambda words: made(words, inputs, room / "out")))
    for workers in ("1", "2", "5"):
        yield row(f"{workers} workers", all_of(_with(inputs, room / "out", "--workers", workers)))
    without = all_of(lambda words: made(words, inputs, room / "out", before=without_numba))
    yield row("torch's kernels in place of numba's", without)
    for budget in ("16M", "4G"):
        yield row(f"--memory {budget}", all_of(_with(inputs, room / "out", "--memory", budget)))
    unhashed = all_of(lambda words: made(words, inputs, room / "out", "--no-hash"), (MANIFEST,))
    yield row("without hashes", unhashed, "all but the manifest")
    for seed in ("0", "1", "4242"):
        fresh = all_of(partial(made_fresh, inputs=inputs, out=room / "out", PYTHONHASHSEED=seed))
        yield row(f"PYTHONHASHSEED={seed}", fresh)
    moved = Path(shutil.copytree(inputs, room / "else" / "where" / "inputs", symlinks=True))
    there = all_of(lambda words: made(words, moved, room / "deep" / "er" / "out", before=lambda: os.chdir(moved)))
    yield row("inputs, target and working folder elsewhere", there)
    for mask in (0o000, 0o022, 0o077):
        yield row(
            f"umask {mask:03o}", _masked(commands, inputs, room / "out", mask, expected), "modes follow the umask"
        )
    if can_mount():
        with memory(room / "small") as small:
            far = all_of(lambda words: made(words, inputs, small / "out"), (MANIFEST,))
        yield row("a target on another file system", far, "all but the manifest, which knows hashes of what was copied")
    yield row("in place", _in_place(commands, inputs, room, expected), "all but the manifest")
    if (ROOT / "tests" / "hub").is_dir():
        yield row("from hf://", _from_the_hub(commands, inputs, room, expected), "shards, index and config")


def made(
    words: tuple[str, ...], inputs: Path, out: Path, *options: str, before: Callable[[], object] = lambda: None
) -> Folder:
    """What the command makes."""
    shutil.rmtree(out, ignore_errors=True)
    ended = ckpt([*(word.format(inputs=inputs) for word in words), "--no-verify", "--out", out, *options], before)
    if ended.code:
        raise RuntimeError(f"{words} {options}: {ended.said}")
    return contents(out)


def _with(inputs: Path, out: Path, *options: str) -> Callable[[tuple[str, ...]], Folder]:
    return lambda words: made(words, inputs, out, *options)


def made_fresh(words: tuple[str, ...], inputs: Path | str, out: Path, **environment: str) -> Folder:
    """The same by an interpreter of its own."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "ckpt", *(word.format(inputs=inputs) for word in words)]
    everything = {**os.environ, **environment}
    subprocess.run(
        [*command, "--no-verify", "--out", str(out)], cwd=ROOT, env=everything, check=True, capture_output=True
    )
    return contents(out)


def unlike(one: Folder, other: Folder, apart: tuple[str, ...] = ()) -> list[str]:
    """The names whose content differs."""
    names = (one.keys() | other.keys()) - {*apart}
    return sorted(name for name in names if one.get(name, ...) != other.get(name, ...))


def without_numba() -> None:
    """Have the child find no compiled kernels, as where numba is not installed."""
    import surgery
    from surgery import blocks

    del surgery.kernels
    sys.modules["surgery.kernels"] = None  # type: ignore[assignment]
    blocks.kernels.cache_clear()


def _masked(
    commands: Mapping[str, tuple[str, ...]], inputs: Path, out: Path, mask: int, expected: Mapping[str, Folder]
) -> dict[str, list[str]]:
    """Files that differ, or that were written and have another mode than any new file has; links keep theirs."""
    found = {}
    for name, words in commands.items():
        wrong = unlike(expected[name], made(words, inputs, out, before=lambda: os.umask(mask)))
        for path in out.iterdir():
            known = path.stat()
            if known.st_nlink == 1 and path.is_file() and stat.S_IMODE(known.st_mode) != 0o666 & ~mask:
                wrong.append(f"mode {known.st_mode:o} of {path.name}")
        found[name] = wrong
    return found


def _in_place(
    commands: Mapping[str, tuple[str, ...]], inputs: Path, room: Path, expected: Mapping[str, Folder]
) -> dict[str, list[str]]:
    found = {}
    for name, words in commands.items():
        copied = Path(shutil.copytree(inputs, room / "inputs-in-place", symlinks=True))
        given = [word.format(inputs=copied) for word in words]
        ended = ckpt([*given, "--no-verify", "--in-place"])
        if ended.code:
            raise RuntimeError(ended.said)
        found[name] = unlike(expected[name], contents(Path(given[1])), (MANIFEST, ".git", ".git/HEAD"))
        shutil.rmtree(copied)
    return found


def _from_the_hub(
    commands: Mapping[str, tuple[str, ...]], inputs: Path, room: Path, expected: Mapping[str, Folder]
) -> dict[str, list[str]]:
    """The sources published on the tests' Hub; what is read by range must be what is read from a folder."""
    sys.path.insert(0, str(ROOT / "tests"))
    from hub import HubServer  # type: ignore[import-not-found]

    found = {}
    with HubServer() as hub:
        for name in ("base", "other", "export", "headless"):
            hub.publish(f"inputs/{name}", inputs / name)
        for name, words in commands.items():
            made_there = made_fresh(words, "hf://inputs", room / "out", **hub.env())
            weights = [file for file in made_there if file.endswith(".safetensors") or file in EDITED]
            wanted = {file: what for file, what in expected[name].items() if file in weights}
            found[name] = unlike(wanted, {file: made_there[file] for file in weights})
    return found


EDITED = ("config.json", "model.safetensors.index.json")

if __name__ == "__main__":
    sys.exit(main())
