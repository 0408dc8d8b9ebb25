"""A folder full of code that wants to be run, and every command over it, in it, under an audit hook.

Nothing of the folder may be imported, compiled or executed, no pickle may look up a class, no weights in another format
may be opened but by what copies or hashes whole files; and nobody may be connected to.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from reliability.fuzzing.ground import LLAMA, written
from reliability.fuzzing.target import expect
from reliability.hostile.answering import Answering, speaking
from reliability.hostile.strangers import git
from reliability.hostile.trial import Trial
from surgery import add_ignore

ROOT = Path(__file__).parents[2]
SECONDS = 300

PICKLES = (
    "pytorch_model.bin",
    "model.pt",
    "optimizer.pth",
    "training_args.bin",
    "scheduler.pkl",
    "x.ckpt",
    "state.npy",
)
MODULES = (
    "modeling_bait.py", "configuration_bait.py", "tokenization_bait.py", "yaml.py", "numpy.py", "json.py", "click.py",
    "sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "torch.py", "checkpoint.py", "ckpt.py", "re.py",
)  # fmt: skip
CODE = "import os, pathlib\npathlib.Path({mark!r}).touch()\nos.system('touch ' + {mark!r})\n"
TEMPLATE = (
    "{{{{ cycler.__init__.__globals__.os.system('touch {mark}') }}}}"
    "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
)

RECIPE = "title: T\nquantize: {groups: [{targets: ['re:.*_proj'], bits: 4, group_size: 32}]}\n"
CALIBRATION = "title: T\ncalibration: {sequences: 1, min_tokens: 1, sources: [{file: texts.jsonl, share: 1}]}\n"

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"x": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
}

SUPPLIERS = (
    "restore-files",
    "fixup",
    "manifest",
    "card",
    "hook",
    "graft",
    "graft-mtp",
    "ignore",
    "quantize",
    "run",
    "int8-head",
)
"""Commands that copy or hash whole side files, whatever is in them."""


CONNECTING = ("socket.connect", "socket.getaddrinfo")

KERNELS = ("('numba.", "('copyreg'", "('builtins', 'object'")
"""What numba looks up in its own cache of compiled kernels, which lies beside this package or in the user's cache."""


@dataclass(frozen=True)
class Ways:
    """Where things are: the bait, its base, a folder for what is written, and a file that must not come to be."""

    bait: Path
    base: Path
    room: Path
    mark: Path


class _Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def trials() -> Iterator[Trial]:
    """Every command that needs no network and no calibration."""
    for name, words in COMMANDS.items():
        yield Trial(f"nothing is run by ckpt {name}", _trial(name, words))
    yield Trial("weights in other formats and code of its own are reported", _reported)
    yield Trial("a hostile chat template is refused by transformers' sandbox", _template)
    yield Trial("nothing is run where a JSON Schema and patterns are judged apart", _apart)


COMMANDS: dict[str, Sequence[str]] = {
    "--help": ("--help",),
    "inspect": ("inspect", "{bait}"),
    "layout": ("layout", "{bait}"),
    "verify": ("verify", "{bait}"),
    "verify --base": ("verify", "{bait}", "--base", "{base}", "--level", "full"),
    "verify --format html": ("verify", "{bait}", "--format", "html", "--output", "{room}/report.html"),
    "verify --fix": ("verify", "{bait}", "--base", "{base}", "--fix"),
    "quantize": ("quantize", "{base}", "--target", "re:.*_proj", "--group-size", "32", "--out", "{room}/q"),
    "graft": ("graft", "{bait}", "--from", "{base}", "--tensors", "model.norm.weight", "--out", "{room}/g"),
    "graft-mtp": ("graft-mtp", "{bait}", "--base", "{base}", "--dry-run"),
    "int8-head": ("int8-head", "{bait}", "--group-size", "32", "--out", "{room}/h"),
    "ignore": ("ignore", "{bait}", "add", "re:.*added.*", "--out", "{room}/i"),
    "restore-files": ("restore-files", "{bait}", "--base", "{base}", "--out", "{room}/r"),
    "fixup": ("fixup", "{bait}", "--base", "{base}", "--dry-run"),
    "run": ("run", "{room}/recipe.yaml", "{base}", "--out", "{room}/b"),
    "gptq --dry-run": ("gptq", "body-int4-g128-gptq", "{base}", "--dry-run"),
    "calibrate": ("calibrate", "{room}/calibration.yaml", "--model", "{bait}", "--out", "{room}/set.safetensors"),
    "manifest verify": ("manifest", "verify", "{bait}"),
    "manifest show": ("manifest", "show", "{bait}"),
    "card": ("card", "{bait}", "--dry-run"),
    "hook status": ("hook", "status", "{bait}"),
    "hook run": ("hook", "run", "pre-push"),
    "upload --dry-run": ("upload", "{bait}", "owner/name", "--dry-run"),
    "inspect --costs": ("inspect", "--costs", "{bait}"),
    "inspect of two": ("inspect", "{bait}", "{base}"),
    "diff": ("diff", "{base}", "{bait}"),
    "diff --json": ("diff", "{bait}", "{bait}", "--json", "--read-all"),
    "diff --plot": ("diff", "{base}", "{bait}", "--plot", "{room}/x.svg"),
    "fidelity": ("fidelity", "--base", "{bait}", "{base}"),
    "fidelity --tokenizer": ("fidelity", "--base", "{url}", "{url}", "--tokenizer", "{bait}"),
    "fidelity --prompts": ("fidelity", "--base", "{url}", "{url}", "--prompts", "{room}/texts.jsonl"),
    "fidelity of a server": ("fidelity", "--base", "{url}", "{url}", "--raw", "--references", "{room}/r.jsonl"),
    "latency": ("latency", "{url}", "--rounds", "1", "--output", "{room}/x.json", "--plot", "{room}/y.svg"),
}


def bait(room: Path) -> Ways:
    """The folder, with code in all the places where somebody might run it."""
    mark, folder = room / "RUN", written(room / "bait", LLAMA)
    base = written(
        room / "base", {key: value for key, value in LLAMA.items() if key != "quantization_config"}, packed=False
    )
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_bait.Bait", "AutoConfig": "configuration_bait.Bait"}
    (folder / "config.json").write_text(json.dumps(config))
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(_Payload(mark)))
    for name in MODULES:
        (folder / name).write_text(CODE.format(mark=str(mark)))
    (folder / "chat_template.jinja").write_text(TEMPLATE.format(mark=mark))
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_bait.Bait", None]}, "tokenizer_class": "Bait"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(mark=str(mark)))
    hook = folder / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    (room / "recipe.yaml").write_text(RECIPE)
    (room / "calibration.yaml").write_text(CALIBRATION)
    (room / "texts.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    shutil.copy(folder / "chat_template.jinja", base)
    draft = add_ignore(Draft.of(open_checkpoint(folder)), ["re:.*added.*"])
    apply_plan(plan_for(draft, None), None)  # leaves a manifest
    committed(folder)
    return Ways(folder, base, room, mark)


def committed(folder: Path) -> None:
    """Make the folder a repository with one commit, without running a hook of it."""
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
        git(folder, "-c", f"core.hooksPath={os.devnull}", *words)


def heard(
    ways: Ways, words: Sequence[str], **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[tuple[str, str]]]:
    """Run a command with the bait as the working folder; what it said, and the events that concern us."""
    log = ways.room / "log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "reliability.hostile.listening", str(log), str(ways.bait), *words]
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    done = subprocess.run(
        command, cwd=ways.bait, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=SECONDS, check=False,
    )  # fmt: skip
    events = [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    return done, [(str(event), str(what)) for event, what in events]


def _trial(name: str, words: Sequence[str]) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        ways = bait(room)
        with Answering(speaking("m")) as server:
            done, events = heard(ways, [word.format(url=server.url, **vars(ways)) for word in words])
        _judge(name, ways, done, [one for one in events if not is_to(server, one)])

    return run


def is_to(server: Answering, event: tuple[str, str]) -> bool:
    """Does an event connect to this very server?"""
    return event[0] in CONNECTING and f"'127.0.0.1', {server.port}" in event[1]


def _judge(name: str, ways: Ways, done: subprocess.CompletedProcess[str], events: Sequence[tuple[str, str]]) -> None:
    expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")
    expect(not ways.mark.exists(), "code of the folder was run")
    for event, what in events:
        if event == "open":
            opened = what in PICKLES and name.partition(" ")[0] not in SUPPLIERS
            expect(not opened, f"opened {what}")
        elif event == "pickle.find_class":
            expect(what.startswith(KERNELS), f"unpickled {what}")
        elif event == "subprocess.Popen":
            expect(_is_ours(name, what), f"started {what}")
        else:
            expect(event.startswith("socket.") and name.startswith("upload"), f"{event}: {what}")


def _is_ours(name: str, what: str) -> bool:
    """Programs that a command may start: git by the hooks, this interpreter to look at what is installed."""
    program = what.removeprefix("(").partition(",")[0].strip("'\"")
    if name.startswith("hook"):
        return Path(program).name in ("git", Path(sys.executable).name)
    return name.startswith("gptq") and program == sys.executable


def _apart(room: Path) -> None:
    """A pattern and a schema that are held against names in another process: in it, too, nothing of the folder."""
    ways = bait(room)
    config = json.loads((ways.bait / "config.json").read_text())
    config["quantization_config"]["ignore"].append(r"re:(\w+\.?)+$x")
    (ways.bait / "config.json").write_text(json.dumps(config))
    (room / "schema.json").write_text(json.dumps({"properties": {"family": {"pattern": "^(a+)+$"}}}))
    done, events = heard(ways, ["verify", str(ways.bait), "--schema", str(room / "schema.json")])
    programs = [what for event, what in events if event == "subprocess.Popen"]
    expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")
    expect(not ways.mark.exists(), "code of the folder was run")
    expect(len(programs) >= 2 and all(sys.executable in what for what in programs), f"started {programs}")
    expect(all(event in ("open", "subprocess.Popen") for event, _ in events), f"{events}")


def _reported(room: Path) -> None:
    """`verify` says what it did not open: every pickle, and the code that config.json points to."""
    from verify import verify

    report = verify(bait(room).bait)
    told = {(finding.rule, finding.place.partition(":")[0]) for finding in report.findings}
    expect(("X08", "config.json") in told, f"auto_map is not told: {sorted(told)}")
    for name in ("pytorch_model.bin", "model.pt", "optimizer.pth"):
        expect(any(rule == "F12" and name in place for rule, place in _places(report)), f"{name} is not told")


def _places(report: Any) -> list[tuple[str, str]]:
    return [(finding.rule, finding.place) for finding in report.findings]


def _template(room: Path) -> None:
    """Only `calibrate` and `gptq` render templates, and they let transformers do it, which runs them in a sandbox."""
    ways = bait(room)
    for name in ("tokenizer_config.json", "config.json"):
        (ways.bait / name).unlink()
    (ways.bait / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (ways.bait / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    words = [
        "calibrate",
        str(room / "calibration.yaml"),
        "--model",
        str(ways.bait),
        "--out",
        str(room / "set.safetensors"),
    ]
    done, events = heard(ways, words)
    _judge("calibrate", ways, done, events)
    expect(done.returncode == 3 and "unsafe" in done.stderr, f"is not refused: {done.stderr[-300:]}")
