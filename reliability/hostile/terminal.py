"""Names that want to be something else when they are shown: a control sequence, another line, markup, another order.

Every name that a stranger gives (of tensors, files, config keys and values, groups, branches, waivers' reasons) is one
of these, and every command is run over them in every form of output. What comes out has no control character and no
bidirectional one, no line that a name made, and no markup that is not ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from checkpoint.folder import MANIFEST
from checkpoint.manifest import Provenance
from reliability.fuzzing.ground import INDEX, LLAMA, shard, written
from reliability.fuzzing.target import expect
from reliability.hostile.strangers import BLOB, TREE, git
from reliability.hostile.trial import Trial
from surgery import add_ignore

ROOT = Path(__file__).parents[2]

NAMES = {
    "an escape sequence": "\x1b[2J\x1b]0;owned\x07",
    "a link of OSC 8": "\x1b]8;;http://127.0.0.1/\x1b\\click\x1b]8;;\x1b\\",
    "C1 controls": "\x9b31mred\x9d",
    "a bidirectional override": "\u202etxt.exe\u2066\u2069",
    "a line of its own": "x\nckpt: all is well, 0 errors",
    "a carriage return": "x\rckpt: all is well",
    "backspaces": "FAIL\x08\x08\x08\x08PASS",
    "separators of lines": "x\u2028ckpt: all is well\u2029y\x85z\x0b\x0c",
    "invisible characters": "a\u200b\u2060\ufeff\u00adb\U000e0041",
    "markup": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "quotes": '" onload="alert(3)" x="]]>&amp;\'--><!--',
    "Markdown": "[click](javascript:alert(4)) | `x` | **b** ![x](http://127.0.0.1/x.png) <!-- ckpt:card end -->",
    "an end of rich's markup": "x[/] [/bold] \\[",
    "rich's markup": "[bold red]x[/] [link=http://127.0.0.1]y[/link]",
    "a noncharacter": "\ufffe\uffff",
    "a percent sign and braces": "%s%n {0} {x.__class__}",
}
DENSE = {key: value for key, value in LLAMA.items() if key != "quantization_config"}
FORGED = re.compile(r"^\s*(?:ckpt: )?all is well", re.MULTILINE)
OURS = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[(?:2K|1A)|\x1b\[\?25[lh]")
"""Colours, and how a bar of progress is drawn again in its place. None of NAMES has any of these."""

ALLOWED = frozenset("\n\t")
INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of what is not shown, or not at its place."""

BRANCH = "x\u202e\u200b"
"""Git takes no control characters in the name of a branch, but these."""

FIDELITY = ("fidelity", "--base", "{room}/none", "--references", "{room}/new.jsonl")
ANSWERED = ("fidelity", "{room}/none", "--references", "{room}/references.jsonl")

COMMANDS: dict[str, Sequence[str]] = {
    "inspect": ("inspect", "{model}"),
    "layout": ("layout", "{model}"),
    "verify as text": ("verify", "{model}", "-v"),
    "verify against a base": ("verify", "{model}", "--base", "{base}"),
    "verify as JSON": ("verify", "{model}", "--format", "json"),
    "verify as SARIF": ("verify", "{model}", "--format", "sarif"),
    "verify as JUnit": ("verify", "{model}", "--format", "junit"),
    "verify as HTML": ("verify", "{model}", "--format", "html"),
    "verify by a schema": ("verify", "{model}", "--schema", "{room}/schema.json"),
    "verify --fix": ("verify", "{model}", "--base", "{base}", "--fix"),
    "ignore show": ("ignore", "{model}", "show"),
    "ignore derive": ("ignore", "{model}", "derive", "--dry-run"),
    "ignore add": ("ignore", "{model}", "add", "{name}", "--dry-run"),
    "graft": ("graft", "{model}", "--from", "{model}", "--tensors", "re:.*", "--dry-run"),
    "graft of nothing": ("graft", "{model}", "--from", "{base}", "--tensors", "{name}", "--dry-run"),
    "quantize": ("quantize", "{base}", "--target", "{name}", "--dry-run"),
    "quantize of all": ("quantize", "{base}", "--target", "re:.*", "--dry-run"),
    "restore-files": ("restore-files", "{model}", "--base", "{base}", "--dry-run"),
    "fixup": ("fixup", "{model}", "--base", "{base}", "--dry-run"),
    "manifest show": ("manifest", "show", "{model}"),
    "manifest verify": ("manifest", "verify", "{model}"),
    "card": ("card", "{model}", "--dry-run"),
    "card of a base": ("card", "{other}", "--base", "{model}", "--dry-run"),
    "another config": ("verify", "{other}", "--base", "{base}"),
    "ignore show of another": ("ignore", "{other}", "show"),
    "int8-head": ("int8-head", "{model}", "--group-size", "32", "--dry-run"),
    "inspect of another": ("inspect", "{other}"),
    "inspect --costs": ("inspect", "--costs", "{model}"),
    "inspect --costs --json": ("inspect", "--costs", "{model}", "--json"),
    "inspect of two": ("inspect", "{model}", "{base}"),
    "inspect of two that are none": ("inspect", "{room}/{name}", "{name}"),
    "diff": ("diff", "{base}", "{model}", "--layers"),
    "diff --json": ("diff", "{base}", "{model}", "--json"),
    "diff of another": ("diff", "{other}", "{model}", "--headers"),
    "diff of a copy": ("diff", "{model}", "{copy}", "--read-all"),
    "diff --plot": ("diff", "{base}", "{model}", "--plot", "{room}/x.svg", "--output", "{room}/x.json"),
    "fidelity with hostile prompts": (*FIDELITY, "--prompts", "{room}/prompts.jsonl"),
    "fidelity with wrong prompts": (*FIDELITY, "--prompts", "{room}/wrong.jsonl"),
    "fidelity with wrong prompts, as JSON": (*FIDELITY, "--prompts", "{room}/wrong.jsonl", "--json"),
    "fidelity with hostile references": (*ANSWERED, "--prompts", "{room}/prompts.jsonl"),
    "fidelity with references of others": (*ANSWERED,),
    "fidelity with an option that is none": ("fidelity", "{name}", "--base", "{name}", "--nll-from", "{name}={name}"),
    "latency of a server that is none": ("latency", "http://127.0.0.1:9/{name}"),
    "latency of an address that is none": ("latency", "--candidate", "{name}={name},{name}"),
    "run of a recipe": ("run", "{room}/recipe.yaml", "{base}", "--dry-run"),
    "a folder that is not there": ("verify", "{room}/{name}"),
    "an engine that is none": ("verify", "{model}", "--engine", "{name}"),
    "a schema that is none": ("verify", "{model}", "--schema", "{name}"),
    "an address that is none": ("verify", "hf://{name}"),
    "a command that is none": ("{name}",),
    "a repository that is none": ("upload", "{model}", "{name}", "--dry-run"),
}


def trials() -> Iterator[Trial]:
    """All of them: each command with all names together, where it is given one with each of them."""
    for what, words in COMMANDS.items():
        if any("{name}" in word for word in words):
            for how, name in NAMES.items():
                yield Trial(f"ckpt {what}: {how}", _trial(words, name))
        else:
            yield Trial(f"ckpt {what}", _trial(words, "x"))
    for what in ("verify as text", "verify against a base", "inspect", "manifest show", "diff", "diff of a copy"):
        yield Trial(f"ckpt {what}, on a terminal", _terminal_trial(COMMANDS[what]))
    yield Trial("the hook's output", _hook)


def hostile(folder: Path, *, readable: bool = True) -> Path:
    """A checkpoint whose every name is one of these; with a config that can be edited, and an index of all of it, if it
    shall be `readable`."""
    names = list(NAMES.values())
    weights = LLAMA["quantization_config"]["config_groups"]["group_0"]["weights"]
    groups = {name: {"targets": [name, f"re:.*{re.escape(name)}"], "weights": weights} for name in names[:6]}
    stated = {**LLAMA["quantization_config"], "config_groups": groups, "ignore": names}
    stated |= {} if readable else {"format": names[0], "quant_method": names[4]}
    config = {**LLAMA, "architectures": names, names[3]: names[4], "auto_map": {names[9]: names[10]}}
    written(folder, LLAMA)
    draft = add_ignore(Draft.of(open_checkpoint(folder)), ["re:.*added.*"])
    apply_plan(plan_for(draft, None), None, provenance=Provenance(("ckpt", *names), {"name": names[0], "says": {}}))
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    (folder / "model-00003-of-00003.safetensors").write_bytes(shard(dict.fromkeys(names, ("BF16", (2,)))))
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= dict.fromkeys(names, "model-00003-of-00003.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    for name in names:
        safe = name.replace("/", "\u2215").replace("\0", "")[:80]
        (folder / f"{safe}.json").write_text(json.dumps({name: name}))
        if not readable:
            (folder / f"{safe}.safetensors").write_bytes(shard({name: ("BF16", (2,))}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": names[1], names[2]: names[0]}))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["waivers"] = [{"rule": "F05", "place": name, "reason": name} for name in names]
    manifest["operations"][0] |= {"parameters": {"added": names, "removed": names}}
    manifest["inputs"][0]["place"] = names[1]
    (folder / MANIFEST).write_text(json.dumps(manifest if readable else dict.fromkeys(names, names[2])))
    return folder


def _trial(words: Sequence[str], name: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        model, base = hostile(room / "model"), written(room / "base", DENSE, packed=False)
        other, copy = hostile(room / "other", readable=False), hostile(room / "copy")
        pattern = {
            "propertyNames": {"pattern": "^[a-z]+$"},
            "properties": {"modules": {"propertyNames": {"maxLength": 3}}},
        }
        (room / "schema.json").write_text(json.dumps(pattern))
        listed = ", ".join(json.dumps(one) for one in NAMES.values())
        (room / "recipe.yaml").write_text(
            f"title: T\nquantize: {{groups: [{{targets: [{listed}], bits: 4, group_size: 32}}]}}\n"
        )
        _asked(room)
        filled = [word.format(model=model, base=base, other=other, copy=copy, room=room, name=name) for word in words]
        done = said(filled, room)
        judged(done.stdout, form_of(filled))
        judged(done.stderr, "text")
        expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")

    return run


def _asked(room: Path) -> None:
    """Prompts and answers for `ckpt fidelity` with these names, and some that are none."""
    names = list(NAMES.values())
    prompts: list[dict[str, Any]] = [{"id": name, "prompt": name} for name in names]
    head: dict[str, Any] = dict.fromkeys(("model", "engine", "dtype", "unscored"), names[0])
    head |= {"kind": "ckpt fidelity references", "version": 1, "sampling": {"temperature": 0, "max_tokens": 1}}
    head |= {"layout": {"by": "raw", "sha256": names[1], "arguments": {names[2]: names[3]}}}
    head |= {"prompts": {"name": names[4], "count": 1, "sha256": _digest(prompts)}}
    answers = [{"id": f"{name}x", "text": name, "finish": name, "prompt_ids": None, "ids": None} for name in names]
    wrong = [{name: name, "id": name, "prompt": "x", "format": {"probe": name}} for name in names]
    _lines(room / "prompts.jsonl", prompts)
    _lines(room / "wrong.jsonl", [*wrong, *prompts, *prompts])
    _lines(room / "references.jsonl", [head, *({**answer, "nll": None} for answer in answers), head])


def _lines(path: Path, records: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _digest(records: Sequence[Any]) -> str:
    """As `fidelity.prompts` has it."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def _terminal_trial(words: Sequence[str]) -> Callable[[Path], None]:
    """On a terminal there are colours and a bar of progress, which are ours, and nothing else."""

    def run(room: Path) -> None:
        model, base = hostile(room / "model"), written(room / "base", DENSE, packed=False)
        copy = hostile(room / "copy")
        ours, theirs = os.openpty()
        command = [
            sys.executable,
            "-P",
            "-m",
            "ckpt",
            *(word.format(model=model, base=base, copy=copy) for word in words),
        ]
        surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100"}
        with subprocess.Popen(
            command, cwd=room, env=surroundings, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            text = b"".join(iter(lambda: _read(ours), b"")).decode()
        os.close(ours)
        expect(process.returncode in (0, 1) and len(text) > 100, f"said {text[:300]!r}")
        judged(OURS.sub("", text).replace("\r\n", "\n"), "text")

    return run


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # nobody has the other end any more
        return b""


def form_of(words: Sequence[str]) -> str:
    if "--format" in words:
        return words[words.index("--format") + 1]
    return "json" if "--json" in words else "text"


def said(words: Sequence[str], room: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `ckpt` says to these words."""
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", **environment}
    command = [sys.executable, "-P", "-m", "ckpt", *(word.replace("\0", "") for word in words)]
    return subprocess.run(
        command, cwd=room, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
        errors="surrogateescape", timeout=120, check=False,
    )  # fmt: skip


def judged(text: str, form: str) -> None:
    """Raise Wrong where `text` has what only a name can have brought."""
    found = sorted({f"U+{ord(c):04X}" for c in text if c not in ALLOWED and unicodedata.category(c) in INVISIBLE})
    expect(not found, f"shows {', '.join(found)}")
    expect(FORGED.search(text) is None, "a line that a name made")
    if form == "html":
        expect("<script" not in text.lower() and "<img" not in text.lower(), "markup of a name")
    elif form == "junit":
        ElementTree.fromstring(text)
    elif form in ("json", "sarif"):
        json.loads(text)


def _hook(room: Path) -> None:
    """What a push is told: branch, folder, files, the rules' places, and the reasons of waivers."""
    model = hostile(room / "model")
    repository = room / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    entries = [
        (os.fsencode(path.name), git(repository, "hash-object", "-w", str(path)).strip())
        for path in sorted(model.iterdir())
    ]
    reasons = [{"rule": "F05", "reason": name} for name in NAMES.values()]
    waivers = git(repository, "hash-object", "-w", "--stdin", given=json.dumps({"waivers": reasons}).encode()).strip()
    inner = _tree(repository, [(BLOB, name, oid) for name, oid in entries])
    folders = [(TREE, os.fsencode(name.replace("/", "-")), inner) for name in sorted(NAMES.values())]
    tree = _tree(repository, [(BLOB, b"waivers.json", waivers), *folders])
    commit = git(repository, "commit-tree", tree.decode(), "-m", "x").decode().strip()
    git(repository, "config", "ckpt.waivers", "waivers.json")
    git(repository, "update-ref", f"refs/heads/{BRANCH}", commit)
    git(repository, "update-ref", "HEAD", commit)
    told = {"PRE_COMMIT_REMOTE_BRANCH": "refs/heads/\x1b[2J\nckpt: all is well", "PRE_COMMIT_TO_REF": commit}
    for environment in ({}, told):
        done = said(["hook", "run", "pre-push"], repository, **environment)
        judged(done.stdout, "text")
        judged(done.stderr, "text")
        expect(done.returncode in (1, 3), f"passes: {done.stdout[-300:]}")
        expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")


def _tree(repository: Path, entries: Sequence[tuple[bytes, bytes, bytes]]) -> bytes:
    raw = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid.decode()) for mode, name, oid in entries)
    return git(repository, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=raw).strip()
