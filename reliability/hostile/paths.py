"""Names and links that lead out of a folder, and files that are none: in whatever says where a file is.

Each trial has a folder `outside` with a secret in it, beside the checkpoint `model`. The trial must be refused by name,
or its name be left alone as no part of a checkpoint; and nothing outside may be opened, listed, made or changed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checkpoint import Draft, Problem, apply_plan, open_checkpoint, plan_for, survey
from checkpoint.manifest import differences, read_manifest
from checkpoint.recovery import undo_path
from reliability.fuzzing.ground import INDEX, LLAMA, written
from reliability.fuzzing.target import expect
from reliability.hostile.trial import Trial, refusals
from reliability.hostile.watching import watched

SECRET = "secret"
SHARD = "model-00001-of-00002.safetensors"
LEFT_ALONE: frozenset[str] = frozenset()
"""No refusal: what is tried is no part of a checkpoint, so it is neither read nor written."""

NAMES = {
    "a step up": "../outside/x.safetensors",
    "steps up on the way": "sub/../../outside/x.safetensors",
    "an absolute path": "{room}/outside/x.safetensors",
    "a folder": "sub/x.safetensors",
    "backslashes": "..\\outside\\x.safetensors",
    "a drive": "C:x.safetensors",
    "nothing": "",
    "a dot": ".",
    "two dots": "..",
    "a hidden file": ".x.safetensors",
    "the home folder": "~/x.safetensors",
    "NUL": "x\0.safetensors",
    "a name too long": "x" * 300 + ".safetensors",
    "a path too long": "a/" * 3000 + "x.safetensors",
    "a line break": "x\n.safetensors",
    "a trailing dot": "x.safetensors.",
    "a trailing blank": "x.safetensors ",
    "a wild card": "*.safetensors",
    "another case": "X.SAFETENSORS",
    "a bidirectional override": "x\u202e.safetensors",
    "a surrogate": "x\ud800.safetensors",
    "a process's own memory": "/proc/self/mem",
    "a device": "/dev/zero",
    "a number": 5,
    "a list": ["x.safetensors"],
    "null": None,
}
"""What a weight_map may name for a tensor."""

NAMES_TOO_LONG = "x" * 300 + ".json"

LOOKALIKES = {
    "a look-alike slash": "..\u2215outside\u2215x.safetensors",
    "full-width dots": "\uff0e\uff0e\uff0foutside\uff0fx.safetensors",
    "percent signs": "..%2foutside%2fx.safetensors",
    "somebody's home": "~root.safetensors",
    "a variable": "$HOME.safetensors",
}
"""Names that are names, whatever they look like: there is no such file in the folder."""


def trials() -> Iterator[Trial]:
    """All of them."""
    for what, name in NAMES.items():
        yield Trial(f"weight_map: {what}", _index_trial(name, "unsafe-name"))
    for what, name in LOOKALIKES.items():
        yield Trial(f"weight_map: {what}", _index_trial(name, "shard-missing", "unsafe-name"))
    yield from _file_trials()
    yield from _link_trials()
    yield from _record_trials()
    yield from _writing_trials()


def sound(room: Path) -> Path:
    """A checkpoint in `room`, beside a folder with a secret."""
    outside = room / "outside"
    outside.mkdir()
    for name in ("x.safetensors", "secret.txt", "config.json"):
        (outside / name).write_text(SECRET)
    shutil.copy(written(room / "spare", LLAMA) / SHARD, outside / "whole.safetensors")
    return written(room / "model", LLAMA)


def tried(room: Path, act: Callable[[Path], tuple[Problem, ...]], model: Path, *codes: str) -> None:
    """`act` on the model is refused with one of `codes` (or none is asked for), and nothing outside is touched."""
    before = _state(room / "outside")
    with watched() as touched:
        found = act(model)
    expect(not touched.inside(room / "outside"), f"touched {touched.inside(room / 'outside')}")
    expect(_state(room / "outside") == before, "changed what lies outside")
    told = {problem.code for problem in found}
    expect(not codes or bool(told & set(codes)), f"told {sorted(told)}, not {' or '.join(codes)}")
    expect(all(str(problem).isprintable() for problem in found), "a refusal that is not printable")


def _state(folder: Path) -> list[tuple[str, bytes, int]]:
    return [(path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]


def surveyed(model: Path) -> tuple[Problem, ...]:
    """What is wrong with the folder; and it is refused where it is to be read, unless nothing is."""
    from verify import verify

    found = survey(model)
    list(verify(found).lines())
    return found.problems


def rewritten(model: Path) -> tuple[Problem, ...]:
    """Write it anew, into a new folder."""
    out = model.parent / "out"
    return refusals(lambda: apply_plan(plan_for(Draft.of(open_checkpoint(model)), out), out))


def _index_trial(name: Any, *codes: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        index = json.loads((model / INDEX).read_text())
        stated = name.format(room=room) if isinstance(name, str) else name
        index["weight_map"]["model.norm.weight"] = stated
        (model / INDEX).write_text(json.dumps(index))
        tried(room, surveyed, model, *codes, "json-invalid")
        tried(room, rewritten, model, *codes, "json-invalid")

    return run


NOTES = (".git/HEAD", f".cache/huggingface/download/{SHARD}.metadata")
BESIDE = (".model.ckpt-lock", ".model.ckpt-new", ".model.ckpt-journal", ".model.ckpt-spool", ".model.ckpt-undo")

Make = Callable[[Path, Path], None]
"""Puts something at a path; the second one is a folder outside."""


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        at = os.getcwd()
        os.chdir(path.parent)  # the path of a socket may have 107 bytes
        one.bind(path.name)
        os.chdir(at)


def _device(path: Path, outside: Path) -> None:
    try:
        os.mknod(path, 0o020644, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "x").write_text("x")


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "whole.safetensors" if path.suffix == ".safetensors" else outside / "config.json")


def _chain(path: Path, outside: Path) -> None:
    path.symlink_to("one-step")
    (path.parent / "one-step").symlink_to("another-step")
    (path.parent / "another-step").symlink_to(outside / "config.json")


def _loop(path: Path, outside: Path) -> None:
    path.symlink_to("round")
    (path.parent / "round").symlink_to(path.name)


def _dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not there")


def _zero(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def _memory(path: Path, outside: Path) -> None:
    path.symlink_to("/proc/self/environ")


def _through_folder(path: Path, outside: Path) -> None:
    (path.parent / "way").symlink_to(outside)
    path.symlink_to("way/config.json")


MAKERS: dict[str, Make] = {
    "a pipe": _fifo,
    "a socket": _socket,
    "a device": _device,
    "a folder of that name": _folder,
    "a link out": _link,
    "a chain of links out": _chain,
    "a loop of links": _loop,
    "a link to nothing": _dangling,
    "a link to a device": _zero,
    "a link to the environment": _memory,
    "a link through a linked folder": _through_folder,
}


def _file_trials() -> Iterator[Trial]:
    """A shard, the index and config.json that are no files of the folder."""
    places = {"a shard": SHARD, "the index": INDEX, "config.json": "config.json"}
    for what, name in places.items():
        for how, make in MAKERS.items():
            yield Trial(f"{what}: {how}", _file_trial(name, make))


def _file_trial(name: str, make: Make) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        (model / name).unlink()
        make(model / name, room / "outside")
        tried(room, surveyed, model, "unsafe-name", "shard-missing", "file-unreadable")
        tried(room, rewritten, model, "unsafe-name", "shard-missing", "file-unreadable")

    return run


def _link_trials() -> Iterator[Trial]:
    """Side files: links out are told, and what is no file is left alone; neither is in what is written."""
    for how, make in MAKERS.items():
        for name in ("tokenizer.json", "README.md", "generation_config.json"):
            yield Trial(f"the side file {name}: {how}", _side_trial(name, make))
    yield Trial("a linked folder of side files", _linked_folder)
    yield Trial("a hook of git as a side file", _git_hook)
    yield Trial("a thousand folders in one another", _deep)


def _side_trial(name: str, make: Make) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        (model / name).unlink(missing_ok=True)
        make(model / name, room / "outside")
        tried(room, surveyed, model)
        tried(room, rewritten, model)
        tried(room, _carded, model)
        _nothing_out(room)

    return run


def _carded(model: Path) -> tuple[Problem, ...]:
    from cards.markers import read_readme

    return refusals(lambda: read_readme(model))


def _nothing_out(room: Path) -> None:
    """What was written, if anything was, holds no secret, and nothing but files and folders."""
    for path in (room / "out").rglob("*"):
        expect(not path.is_symlink() and (path.is_file() or path.is_dir()), f"{path.name} is no file")
        expect(path.is_dir() or SECRET.encode() not in path.read_bytes(), f"{path.name} holds the secret")


def _linked_folder(room: Path) -> None:
    model = sound(room)
    (model / "sub").symlink_to(room / "outside")
    tried(room, surveyed, model)
    tried(room, rewritten, model)
    _nothing_out(room)


def _git_hook(room: Path) -> None:
    model = sound(room)
    hook = model / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\ntouch ../outside/run\n")
    tried(room, rewritten, model)
    expect(not (room / "out" / ".git").exists(), "a hook was written")


def _deep(room: Path) -> None:
    """Deeper than Python calls itself, and than a path may be long."""
    model = sound(room)
    _deepened(model)
    try:
        tried(room, surveyed, model, "unsafe-name")
        tried(room, rewritten, model, "unsafe-name")
    finally:
        _levelled(model)


def _deepened(folder: Path) -> None:
    at = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(at)


def _levelled(model: Path) -> None:
    """Remove the folders one by one, as what removes trees calls itself for each."""
    while (inner := model / "d").is_dir():
        deeper = inner / "d"
        if deeper.is_dir():
            deeper.rename(model / "next")
        inner.rmdir()
        if (model / "next").is_dir():
            (model / "next").rename(inner)


def _record_trials() -> Iterator[Trial]:
    """Manifest and undo record: what they name, and what they are."""
    for what in ("a step up", "steps up on the way", "an absolute path", "NUL", "two dots", "a name too long"):
        name = str(NAMES[what]).replace(".safetensors", ".json")
        yield Trial(f"the manifest's files: {what}", _manifest_trial("files", name))
        yield Trial(f"the undo record: {what}", _undo_trial({"replaced": [], "added": [name], "folders": []}))
        yield Trial(
            f"the undo record, replacing: {what}", _undo_trial({"replaced": [name], "added": [], "folders": []})
        )
    yield Trial("the manifest's shards: a step up", _manifest_trial("shards", str(NAMES["a step up"])))
    yield Trial(
        "the undo record: through a link", _undo_trial({"replaced": [], "added": ["way/secret.txt"], "folders": []})
    )
    for how, make in MAKERS.items():
        yield Trial(f"the manifest: {how}", _record_trial("ckpt.manifest.json", make))
        yield Trial(f"the undo record: {how}", _undo_file_trial(make))


def _manifest_trial(key: str, name: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        out = room / "out"
        apply_plan(plan_for(Draft.of(open_checkpoint(model)), out), out)
        document = json.loads((out / "ckpt.manifest.json").read_text())
        known = next(iter(document[key].values()))
        document[key][name.format(room=room)] = known
        (out / "ckpt.manifest.json").write_text(json.dumps(document))
        tried(room, _held, out, "manifest-invalid", "file-missing")

    return run


def _record_trial(name: str, make: Make) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        make(model / name, room / "outside")
        tried(room, _held, model)
        tried(room, rewritten, model)

    return run


def _held(model: Path) -> tuple[Problem, ...]:
    """Hold the folder against its manifest."""
    found: list[Problem] = []

    def act() -> None:
        manifest = read_manifest(model)
        if manifest is not None:
            found.extend(differences(manifest, model).problems)

    return (*refusals(act), *found)


def _undo_trial(record: dict[str, list[str]]) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        (model / "way").symlink_to(room / "outside")
        names = {key: [name.format(room=room) for name in group] for key, group in record.items()}
        undo_path(model).mkdir()
        (undo_path(model) / "record.json").write_text(json.dumps(names))
        # to put a file back that was never kept is to do nothing
        codes = () if record["replaced"] == [NAMES_TOO_LONG] else ("unsafe-name", "file-unreadable")
        tried(room, lambda folder: refusals(lambda: survey(folder)), model, *codes)

    return run


def _undo_file_trial(make: Make) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model = sound(room)
        undo_path(model).mkdir()
        make(undo_path(model) / "record.json", room / "outside")
        tried(room, lambda folder: refusals(lambda: survey(folder)), model)

    return run


def _writing_trials() -> Iterator[Trial]:
    yield Trial("in place: a folder of the target links out", _through_target)
    yield Trial("left beside the target, folders deep in one another", _deep_beside)
    for how, make in MAKERS.items():
        for name in NOTES:
            yield Trial(f"the note {name}: {how}", _note_trial(name, make))
        for name in BESIDE:
            yield Trial(f"left beside the target, {name}: {how}", _beside_trial(name, make))
    yield Trial("in place: a hard link to a file outside", _hard_link)
    yield Trial("in place: the target is a link", _linked_target)


def _note_trial(name: str, make: Make) -> Callable[[Path], None]:
    """What git or the Hub's tools note, read for the manifest of what is written."""

    def run(room: Path) -> None:
        model = sound(room)
        (model / name).parent.mkdir(parents=True)
        make(model / name, room / "outside")
        tried(room, rewritten, model)
        expect((room / "out" / INDEX).is_file(), "nothing was written")

    return run


def _beside_trial(name: str, make: Make) -> Callable[[Path], None]:
    """What a run finds where its own leftovers would be; then it writes in place, or refuses."""

    def run(room: Path) -> None:
        model = sound(room)
        make(room / name, room / "outside")
        tried(room, _edited, model)

    return run


def _edited(model: Path) -> tuple[Problem, ...]:
    """Change one document of it, in place."""
    from surgery import add_ignore

    draft = add_ignore(Draft.of(open_checkpoint(model)), ["re:.*added.*"])
    return refusals(lambda: apply_plan(plan_for(draft, None), None))


def _deep_beside(room: Path) -> None:
    model, leftover = sound(room), room / ".model.ckpt-new"
    leftover.mkdir()
    _deepened(leftover)
    try:
        tried(room, surveyed, model)
        tried(room, _edited, model)
    finally:
        _levelled(leftover)


def _through_target(room: Path) -> None:
    """The base has `sub/new.txt`; the target's `sub` leads out. Both ways of writing in place."""
    from checkpoint.staging import replace_files

    model = sound(room)
    staged = room / "staged"
    (staged / "sub").mkdir(parents=True)
    (staged / "sub" / "secret.txt").write_text("overwritten")
    (model / "sub").symlink_to(room / "outside")
    tried(room, lambda folder: refusals(lambda: replace_files(staged, folder)), model, "unsafe-name")


def _hard_link(room: Path) -> None:
    """The other name of what is written in place keeps its content."""
    from surgery import add_ignore

    model, other = sound(room), room / "outside" / "linked.json"
    os.link(model / "config.json", other)
    before = other.read_bytes()
    draft = add_ignore(Draft.of(open_checkpoint(model)), ["re:.*added.*"])
    apply_plan(plan_for(draft, None), None)
    expect(other.read_bytes() == before, "the other name has changed")
    expect((model / "config.json").read_bytes() != before, "nothing was written")


def _linked_target(room: Path) -> None:
    """A new folder is not written through a link."""
    model = sound(room)
    (room / "out").symlink_to(room / "outside")
    tried(room, rewritten, model, "target-exists")
