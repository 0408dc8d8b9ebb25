"""A small checkpoint with bytes that can be told apart, work to do on it, and folders taken down in every detail."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from building import Entries, write_checkpoint, write_shard

from checkpoint import (
    Checkpoint,
    Computed,
    Draft,
    Problem,
    Refused,
    TensorRef,
    apply_plan,
    open_checkpoint,
    plan_for,
)
from checkpoint.draft import Block
from checkpoint.files import scratch
from checkpoint.folder import MANIFEST

SHARDS = tuple(f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3))

CONFIG = {"model_type": "llama", "hidden_size": 8, "quantization_config": {"ignore": ["lm_head"]}}


def noise(nbytes: int, seed: object) -> bytes:
    return random.Random(str(seed)).randbytes(nbytes)


def entries(prefix: str = "") -> Entries:
    """Nine tensors of several dtypes, sizes and alignments; three of them fall to each of three shards."""
    sizes = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1}
    shapes = (("BF16", (3, 5)), ("F32", (7,)), ("I8", (13,)), ("I64", (2,)), ("BF16", (64, 33)), ("F32", (0, 4)),
              ("I8", ()), ("BF16", (8, 8)), ("F32", (3, 3)))  # fmt: skip
    result: Entries = {}
    for number, (dtype, shape) in enumerate(shapes):
        nbytes = sizes[dtype]
        for length in shape:
            nbytes *= length
        name = f"{prefix}t{number}"
        result[name] = (dtype, shape, noise(nbytes, name))
    return result


def sample(folder: Path) -> Path:
    """`entries` in three shards, with index, config and side files."""
    return write_checkpoint(folder, entries(), CONFIG, shards=3)


def repository(folder: Path) -> Path:
    """A checkpoint as people keep them: in a repository, with things of their own beside it."""
    root = sample(folder / "model")
    for name in (".git/refs/heads/main", ".git/HEAD", ".cache/x", "notes/deep/todo.txt", "notes/.hidden/y", "own.txt",
                 "templates/tool.jinja"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name in ("empty", "notes/empty", ".git/objects"):
        (root / name).mkdir(parents=True)
    (root / "notes").chmod(0o700)
    (root / "own.txt").chmod(0o600)
    write_shard(root / "stray.safetensors", {"stray": ("I8", (3,), b"abc")})
    (root / "dangling").symlink_to("nowhere")
    (root / "to-folder").symlink_to("notes")
    (root / "notes" / "to-folder").symlink_to("../.git")
    (root / "to-file").symlink_to("own.txt")
    os.mkfifo(root / "pipe")
    return root


@dataclass(frozen=True)
class Inverted:
    """Work for tests: `out` is every bit of `source` flipped, `sum` one byte a block; blocks of `step` bytes."""

    source: TensorRef
    step: int = 16
    before: Callable[[int], None] = lambda block: None

    @property
    def outputs(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        return {"out": (self.source.dtype, self.source.shape), "sum": ("U8", (self.blocks,))}

    @property
    def identity(self) -> str:
        return f"{type(self).__name__} {self.step}"

    @property
    def known(self) -> Mapping[str, bytes]:
        return {}

    @property
    def blocks(self) -> int:
        return max(1, -(-self.source.nbytes // self.step))

    @property
    def block_memory(self) -> int:
        return 2 * self.step

    def span(self, block: int) -> tuple[int, int]:
        return block * self.step, min(self.step, self.source.nbytes - block * self.step)

    def buffer(self, nbytes: int) -> memoryview:
        return scratch(nbytes)

    def run(self, block: int, data: memoryview) -> Iterator[Block]:
        self.before(block)
        yield "out", block * self.step, memoryview(inverted(data))
        yield "sum", block, memoryview(bytes([sum(data) % 256]))


def inverted(data: bytes | memoryview) -> bytes:
    """`data` with every bit flipped, without Python's help byte by byte."""
    return (int.from_bytes(data, "little") ^ ((1 << 8 * len(data)) - 1)).to_bytes(len(data), "little")


@dataclass(frozen=True)
class Refusing(Inverted):
    """Work that finds its data unfit, in every block."""

    def run(self, block: int, data: memoryview) -> Iterator[Block]:
        raise Refused(Problem("not-finite", "holds NaN or Inf", self.source.path.name, self.source.name))


def with_work(draft: Draft, *names: str, kind: type[Inverted] = Inverted, **more: object) -> Draft:
    """`draft` with each of `names` replaced by NAME.out and NAME.sum."""
    changes = {}
    for name in names:
        source = draft.tensors[name]
        if not isinstance(source, TensorRef):
            raise TypeError(f"{name} is computed already")
        work = kind(source, **more)  # type: ignore[arg-type]
        changes[name] = {f"{name}.out": Computed(work, "out"), f"{name}.sum": Computed(work, "sum")}
    return draft.replaced(changes)


def opened(folder: Path) -> tuple[Checkpoint, Draft]:
    checkpoint = open_checkpoint(folder)
    return checkpoint, Draft.of(checkpoint)


def contents(folder: Path) -> dict[str, object]:
    """Everything in `folder` but its manifest: bytes of files, targets of links, None for folders, with modes."""
    found: dict[str, object] = {}
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            full = Path(path, name)
            relative, mode = full.relative_to(folder).as_posix(), stat.filemode(full.lstat().st_mode)
            if full.is_symlink():
                found[relative] = (mode, os.readlink(full))
            else:
                found[relative] = (mode, full.read_bytes() if full.is_file() else None)
    found.pop(MANIFEST, None)
    return found


def inodes(folder: Path) -> dict[str, int]:
    paths = (path for path in sorted(folder.rglob("*")) if path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): path.lstat().st_ino for path in paths}


def tensors_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What safetensors reads in all shards of `folder`."""
    from safetensors import deserialize

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, t in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
            found[name] = (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
    return found


def write(draft: Draft, target: Path, **more: Any) -> Path:
    return apply_plan(plan_for(draft, target), target, **more).root


def without_exchange(one: Path, other: Path) -> None:
    raise OSError(errno.ENOSYS, "no renameat2")
