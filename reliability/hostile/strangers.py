"""Names and links that come by network or with a repository: a Hub's listing, a tree of git, a stranger's recipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checkpoint import CkptError, Problem
from checkpoint.remote.listing import _files
from ckpt.hooks import Git, Settings, judge_pushed
from ckpt.hooks.target import Pushed
from reliability.fuzzing.target import expect
from reliability.hostile.paths import MAKERS, NAMES, SHARD, sound, tried
from reliability.hostile.trial import Trial, refusals
from reliability.hostile.watching import watched

LISTED = {
    "a step up": "../outside/x.json",
    "steps up on the way": "sub/../../outside/x.json",
    "an absolute path": "/etc/x.json",
    "two slashes": "sub//x.json",
    "a dot": "./x.json",
    "a slash at the end": "sub/",
    "backslashes": "..\\outside\\x.json",
    "NUL": "x\0.json",
    "a line break": "x\n.json",
    "a bidirectional override": "x\u202enosj.exe",
    "a name too long": "x" * 300,
    "nothing": "",
    "an escape sequence": "\x1b[2Jx.json",
}

BLOB, LINK, TREE, SUBMODULE = b"100644", b"120000", b"40000", b"160000"

TREES: dict[str, list[tuple[bytes, bytes, bytes]]] = {
    "a step up as a name": [(BLOB, b"../outside/secret.txt", b"written")],
    "a link out as config.json": [(LINK, b"config.json", b"../../../../outside/config.json")],
    "an absolute link": [(LINK, b"config.json", b"{outside}/config.json")],
    "a link to the environment": [(LINK, b"config.json", b"/proc/self/environ")],
    "a link to a device": [(LINK, b"config.json", b"/dev/zero")],
    "a link out as a side file": [(LINK, b"tokenizer.json", b"{outside}/secret.txt")],
    "a chain of links": [(LINK, b"config.json", b"one"), (LINK, b"one", b"{outside}/config.json")],
    "a loop of links": [(LINK, b"config.json", b"one"), (LINK, b"one", b"config.json")],
    "a link with NUL in it": [(LINK, b"config.json", b"a\0b")],
    "a link to nothing": [(LINK, b"config.json", b"")],
    "a link too long": [(LINK, b"config.json", b"x" * 5000)],
    "a link and a file of one name": [(LINK, b"config.json", b"{outside}/config.json"), (BLOB, b"config.json", b"{}")],
    "a name with a line break": [(BLOB, b"x\nE F01 forged.json", b"{}")],
    "a name too long": [(BLOB, b"x" * 300, b"{}")],
    "a name that is not UTF-8": [(BLOB, b"\xff\xfe.json", b"{}")],
    "an absolute name": [(BLOB, b"/etc/x", b"{}")],
    "a shard that is a submodule": [(SUBMODULE, b"model-00003-of-00003.safetensors", b"")],
    "a hook": [(BLOB, b".git/hooks/post-checkout", b"#!/bin/sh\n")],
    "names that differ by case": [(BLOB, b"CONFIG.JSON", b"{}"), (BLOB, b"Config.json", b"{}")],
}

FOLDERS: dict[str, tuple[bytes, list[tuple[bytes, bytes, bytes]]]] = {
    "a folder called two dots": (b"..", [(BLOB, b"secret.txt", b"written")]),
    "a folder called .git": (b".git", [(BLOB, b"config", b"[core]\n\tfsmonitor = touch /tmp/run\n")]),
    "a folder and a link of one name": (b"sub", [(LINK, b"secret.txt", b"x"), (BLOB, b"other.txt", b"x")]),
    "a folder and a link of one name, links alone": (b"sub", [(LINK, b"new.txt", b"x")]),
}

RECIPE = "title: T\nbase: {base}\nquantize: {{groups: [{{targets: [Linear], bits: 4, group_size: 32}}]}}\n"
SOURCES = "title: T\ncalibration: {{sequences: 1, min_tokens: 1, sources: [{{file: {file}, share: 1}}]}}\n"


def trials() -> Iterator[Trial]:
    """All of them."""
    for what, name in LISTED.items():
        yield Trial(f"a Hub's listing: {what}", _listing_trial(name))
    for what, entries in TREES.items():
        yield Trial(f"a tree of git: {what}", _tree_trial(entries))
    for what, (folder, inner) in FOLDERS.items():
        yield Trial(f"a tree of git: {what}", _folder_trial(folder, inner))
    for how in MAKERS:
        yield Trial(f"a recipe: {how}", _recipe_trial(how))
        yield Trial(f"a schema: {how}", _schema_trial(how))
        yield Trial(f"waivers: {how}", _waivers_trial(how))
    for what in ("NUL", "a name too long", "a path too long", "a device", "a process's own memory"):
        yield Trial(f"a recipe's base: {what}", _base_trial(str(NAMES[what])))
        yield Trial(f"a recipe's text: {what}", _text_trial(f"{NAMES[what]}.txt"))


def _listing_trial(name: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        siblings = [SimpleNamespace(rfilename=one, lfs=None, size=1, blob_id="0") for one in ("config.json", name)]
        found = refusals(lambda: list(_files(siblings, "o/n", "0" * 40)))
        expect([problem.code for problem in found] == ["unsafe-name"], f"told {found}")
        expect(all(str(problem).isprintable() for problem in found), "a refusal that is not printable")

    return run


def _tree_trial(entries: list[tuple[bytes, bytes, bytes]]) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        repository, model = _repository(room)
        _judged(room, repository, _with(repository, _entries_of(repository, model), entries, room))

    return run


def _folder_trial(name: bytes, inner: list[tuple[bytes, bytes, bytes]]) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        repository, model = _repository(room)
        tree = _with(repository, [], inner, room)
        known = [*_entries_of(repository, model), (TREE, name, tree)]
        link = [(LINK, name, b"{outside}")] if name == b"sub" else []
        _judged(room, repository, _with(repository, known, link, room))

    return run


def _judged(room: Path, repository: Path, tree: bytes) -> None:
    """What is pushed is judged; what lies outside is not touched, and nothing of the view is left."""
    commit = git(repository, "commit-tree", tree.decode(), "-m", "x").decode().strip()
    before = sorted((path.name, path.read_bytes()) for path in (room / "outside").iterdir())
    with watched() as touched:
        verdicts = list(judge_pushed(Git(repository), [Pushed("refs/heads/main", commit)], Settings()))
    expect(not touched.inside(room / "outside"), f"touched {touched.inside(room / 'outside')}")
    expect(sorted((p.name, p.read_bytes()) for p in (room / "outside").iterdir()) == before, "changed what is outside")
    expect(bool(verdicts), "no verdict")
    expect(not any((repository / ".git" / "ckpt").glob("*/view")), "a view is left")
    expect(all(str(problem).isprintable() for one in verdicts for problem in one.problems), "not printable")


def _repository(room: Path) -> tuple[Path, Path]:
    model = sound(room)
    repository = room / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    return repository, model


def _entries_of(repository: Path, model: Path) -> list[tuple[bytes, bytes, bytes]]:
    """(mode, name, object) of the files of the checkpoint."""
    return [
        (BLOB, os.fsencode(path.name), git(repository, "hash-object", "-w", str(path)).strip())
        for path in sorted(model.iterdir())
        if path.is_file()
    ]


def _with(
    repository: Path, known: list[tuple[bytes, bytes, bytes]], entries: list[tuple[bytes, bytes, bytes]], room: Path
) -> bytes:
    """A tree of what is known, and of entries with contents, as no tool of git would write it. Its object."""
    found = list(known)
    names = {name for mode, name, _ in entries if mode == LINK or name == b"config.json"}
    found = [one for one in found if one[1] not in names or one[0] == TREE]
    for mode, name, content in entries:
        text = content.replace(b"{outside}", os.fsencode(room / "outside"))
        oid = b"a" * 40 if mode == SUBMODULE else git(repository, "hash-object", "-w", "--stdin", given=text).strip()
        found.append((mode, name, oid))
    raw = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid.decode()) for mode, name, oid in found)
    return git(repository, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=raw).strip()


def git(repository: Path, *words: str, given: bytes = b"") -> bytes:
    surroundings = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        surroundings |= {f"GIT_{role}_NAME": "x", f"GIT_{role}_EMAIL": "x@example.com"}
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, input=given, env=surroundings, capture_output=True, check=True).stdout


def _recipe_trial(how: str) -> Callable[[Path], None]:
    from surgery.recipe import load_recipe

    return _given(how, "x.yaml", load_recipe)


def _schema_trial(how: str) -> Callable[[Path], None]:
    from verify.rules.documents import resolve_schema

    return _given(how, "x.json", lambda path: resolve_schema(str(path)))


def _waivers_trial(how: str) -> Callable[[Path], None]:
    from verify import load_waivers

    return _given(how, "x.yaml", load_waivers)


def _given(how: str, name: str, read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A file that a user names may be a link; what is no file is refused at once."""

    def run(room: Path) -> None:
        model = sound(room)
        MAKERS[how](model / name, room / "outside")
        found = refusals(lambda: read(model / name))
        expect(bool(found), "is not refused")
        expect(all(str(problem).isprintable() for problem in found), "a refusal that is not printable")

    return run


def _base_trial(name: str) -> Callable[[Path], None]:
    """A recipe may name a base anywhere, as a command may; one that is none is refused by name."""

    def run(room: Path) -> None:
        from checkpoint import open_checkpoint
        from surgery.recipe import load_recipe

        def act(model: Path) -> tuple[Problem, ...]:
            return refusals(lambda: open_checkpoint(load_recipe(model / "x.yaml").base or model))

        model = sound(room)
        (model / "x.yaml").write_text(RECIPE.format(base=_quoted(name)))
        expect(bool(act(model)), "is not refused")
        tried(room, act, model)

    return run


def _text_trial(name: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        from surgery.calibration import calibration_of, read_recipe

        model = sound(room)
        path = model / "x.yaml"
        path.write_text(SOURCES.format(file=_quoted(name)))
        try:
            calibration_of(read_recipe(path)["calibration"], path)
        except CkptError as refusal:
            expect(str(refusal).isprintable(), "a refusal that is not printable")
        else:
            expect(False, "is not refused")

    return run


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace("\0", "\\0") + '"'


__all__ = ["SHARD", "trials"]
