"""Records that this project writes and that may come with somebody's archive: manifest, journal, undo record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from checkpoint import Draft, TensorRef, UnreadableCheckpoint, apply_plan, open_checkpoint, plan_for, survey
from checkpoint.folder import MANIFEST
from checkpoint.journal import Journal
from checkpoint.manifest import Manifest, differences, read_manifest, traced
from checkpoint.recovery import undo_path
from reliability.fuzzing import ground
from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.target import Target, expect, place

FINGERPRINT = "f" * 64
CANARY = "canary"
OUTSIDE = ("canary.txt", "beside/canary.txt", "model-2/canary.txt")
RECORD = {"replaced": ["config.json"], "added": ["new.txt", "sub/new.txt"], "folders": ["sub"]}


def manifest(data: bytes) -> None:
    """Read a manifest; what is taken for one can be written, traced and held against its folder."""
    folder = _written()
    (folder / MANIFEST).write_bytes(data)
    try:
        found = read_manifest(folder)
    except UnreadableCheckpoint as refusal:
        expect(bool(str(refusal)), "a refusal without a word")
        return
    expect(found is not None, "the manifest is not seen")
    if found is not None:
        _used(found, folder)


def _used(found: Manifest, folder: Path) -> None:
    expect(json.loads(found.text) == json.loads(json.dumps(found.document)), "written as something else")
    for problem in differences(found, folder, headers=True).problems:
        expect(str(problem).isprintable(), "a problem that is not printable")
    for ref in _tensors(folder):
        for origin in traced(found, ref):
            expect(bool(str(origin)), "an origin without a word")


@cache
def _tensors(folder: Path) -> tuple[TensorRef, ...]:
    return tuple(survey(folder).tensors.values())


def journal(data: bytes) -> None:
    """Read a journal of the right plan: what it calls finished is in its folder, and the very file."""
    path, folder = place() / "journal", ground.dense("journal")
    path.write_bytes(data)
    finished = Journal(path, folder, FINGERPRINT).finished
    for name, digest in finished.items():
        expect((folder / name).resolve().parent == folder.resolve(), f"{name!r} is elsewhere")
        expect(isinstance(digest.sha256, str | None), f"a hash that is {digest.sha256!r}")
        expect(isinstance(digest.tensors, dict), f"hashes of tensors that are {digest.tensors!r}")


def undo(data: bytes) -> None:
    """Open a folder with this undo record beside it: whatever it names, nothing outside of the two folders changes."""
    target = _target()
    record = undo_path(target) / "record.json"
    record.write_bytes(data)
    try:
        survey(target)
    except UnreadableCheckpoint as refusal:
        expect(bool(str(refusal)), "a refusal without a word")
    for name in OUTSIDE:
        expect((target.parent / name).read_text() == CANARY, f"{name} has changed")
    expect((target / "out").is_symlink(), "a link has changed") if (target / "out").exists() else None


def _target() -> Path:
    """A folder with a killed run's leftovers, as they were; made anew where the last record took something away."""
    home = place() / "undo"
    target = home / "model"
    for name in (*OUTSIDE, "model/config.json", "model/new.txt", "model/sub/new.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(CANARY)
    if not (target / "out").is_symlink():
        (target / "out").symlink_to(home / "beside")
    kept = undo_path(target) / "files"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "config.json").write_text("old")
    return target


def manifest_seeds() -> Iterator[bytes]:
    yield (_written() / MANIFEST).read_bytes()


@cache
def _written() -> Path:
    """A folder that this project wrote, with the manifest that it left there."""
    from surgery import add_ignore, graft

    source = open_checkpoint(ground.dense("manifest"))
    draft = add_ignore(Draft.of(source), ["re:.*added.*"])
    moved = graft(draft, source, ["re:.*norm.*"])
    return apply_plan(plan_for(moved, place() / "written"), place() / "written").root


def journal_seeds() -> Iterator[bytes]:
    folder = ground.dense("journal")
    lines: list[object] = [{"plan": FINGERPRINT}]
    for path in sorted(folder.glob("*.safetensors")):
        stat = path.stat()
        stamp = [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]
        lines.append({"shard": path.name, "stamp": stamp, "sha256": "0" * 64, "tensors": {"a": "0" * 64}})
    yield "".join(json.dumps(line) + "\n" for line in lines).encode()


def undo_seeds() -> Iterator[bytes]:
    yield json.dumps(RECORD).encode()
    yield json.dumps(
        {**RECORD, "added": ["../canary.txt", "out/canary.txt", "/etc/x", "sub/../../canary.txt"]}
    ).encode()


def mutate_lines(data: bytes, random: Random) -> bytes:
    """One line of a journal changed, repeated or lost."""
    lines = data.splitlines()
    if not lines:
        return data
    number = random.randrange(len(lines))
    lines[number] = mutate_json(lines[number], random)
    if random.random() < 0.2:
        lines.insert(random.randrange(len(lines) + 1), lines[number])
    return b"\n".join(lines) + b"\n"


WORDS = ("manifest", "runs", "inputs", "operations", "origins", "files", "shards", "was", "how", "kept", "../x", "from")
NAMES = ("..", "../", "/", "out/", "out/canary.txt", "sub", "config.json", ".", "record.json", "model-2", "\\u0000")

TARGETS = (
    Target("manifest", "ckpt.manifest.json", manifest, manifest_seeds, mutate_json, WORDS, longest=16384),
    Target("journal", "journal of a run", journal, journal_seeds, mutate_lines, ('"shard"', '"stamp"', "../")),
    Target("undo", "undo record", undo, undo_seeds, mutate_json, NAMES, longest=2048),
)
