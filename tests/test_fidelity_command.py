"""`ckpt fidelity` as people and scripts meet it: tables, one JSON document, exit codes, words for wrong usage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file, save_file
from small_chat import build_chat, serving_chat

from ckpt.__main__ import main
from schemas import validate

pytest.importorskip("httpx")

PROMPTS = (
    *({"id": f"p{number}", "prompt": f"Say {number}."} for number in range(7)),
    {"id": "p7", "prompt": "A list of three.", "format": {"probe": "items", "count": 3}, "long": True},
)
QUICK = ("--max-tokens", "6", "--threads", "1")


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Ckpt = Callable[..., Run]


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ckpt:
    def run(*arguments: str | Path) -> Run:
        monkeypatch.setattr("sys.argv", ["ckpt", "fidelity", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Run(int(stop.value.code or 0), out, err)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, `copy` of it, `noisy` (its head altered), and `prompts.jsonl`."""
    root = tmp_path_factory.mktemp("fidelity")
    base = build_chat(root / "base")
    shutil.copytree(base, root / "copy")
    noisy = shutil.copytree(base, root / "noisy")
    state = load_file(noisy / "model.safetensors")
    state["model.layers.0.mlp.down_proj.weight"] *= 3
    save_file(state, noisy / "model.safetensors", metadata={"format": "pt"})
    (root / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return root


@pytest.fixture(scope="module")
def asked(folder: Path) -> tuple[str | Path, ...]:
    return ("--prompts", folder / "prompts.jsonl", *QUICK)


def test_a_copy_is_equal_and_an_altered_model_is_told_apart(fidelity: Ckpt, folder: Path, asked: Any) -> None:
    run = fidelity("--base", folder / "base", folder / "copy", "--candidate", f"other={folder / 'noisy'}", *asked)
    assert (run.code, run.err) == (0, "")
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert lines[0] == "8 prompts (prompts.jsonl), greedy, at most 6 tokens; its own chat template"
    assert "n base copy other" in lines
    assert any(line.startswith("same reply 8 - 100 % 0 %") for line in lines)
    assert any(line.startswith("NLL per token other - base 8 +") and line.endswith(" higher") for line in lines)
    assert not any(line.startswith("NLL per token copy - base") for line in lines)


def test_json_is_one_document_that_satisfies_its_schema(fidelity: Ckpt, folder: Path, asked: Any) -> None:
    run = fidelity("--base", folder / "base", folder / "noisy", *asked, "--max-nll-increase", "100", "--json")
    document = run.document
    assert validate(document, "fidelity") == []
    assert (run.code, document["gate"]) == (0, {"max_nll_increase": 100.0, "broken": []})
    (candidate,) = document["candidates"]
    replies = document["replies"]
    assert [reply["id"] for reply in replies] == [prompt["id"] for prompt in PROMPTS]
    tokens = [value for reply in replies for value in reply["candidates"]["noisy"]["token_nll"]]
    assert candidate["measures"]["nll"]["mean"] == pytest.approx(sum(tokens) / len(tokens))
    means = [reply["candidates"]["noisy"]["nll"] for reply in replies]
    assert candidate["nll_median"] == pytest.approx(sum(sorted(means)[3:5]) / 2)
    parted = [reply["candidates"]["noisy"]["diverges_at"]["token"] for reply in replies]
    assert candidate["divergence_median"] == pytest.approx(sum(sorted(parted)[3:5]) / 2)


def test_two_runs_say_the_same(fidelity: Ckpt, folder: Path, asked: Any) -> None:
    arguments = ("--base", folder / "base", folder / "noisy", *asked, "--json")
    assert fidelity(*arguments).out == fidelity(*arguments).out


def test_recorded_references_stand_for_the_base(fidelity: Ckpt, folder: Path, asked: Any, tmp_path: Path) -> None:
    kept = tmp_path / "base.jsonl"
    recorded = fidelity("--base", folder / "base", "--references", kept, *asked)
    assert (recorded.code, recorded.err) == (0, f"references written to {kept}\n")
    prompts = asked[:2]
    later = fidelity("--references", kept, folder / "noisy", *prompts, "--threads", "1", "--json").document
    live = fidelity("--base", folder / "base", folder / "noisy", *asked, "--json").document
    assert later == live


def test_references_have_their_own_length_of_answers(fidelity: Ckpt, folder: Path, asked: Any, tmp_path: Path) -> None:
    kept = tmp_path / "base.jsonl"
    fidelity("--base", folder / "base", "--references", kept, *asked)
    run = fidelity("--references", kept, folder / "copy", *asked[:2], "--max-tokens", "7")
    assert run.code == 2
    assert "answers of at most 6 tokens" in run.err


def test_references_that_are_there_are_refused_before_a_model_runs(
    fidelity: Ckpt, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "base.jsonl").write_text("mine")
    run = fidelity("--base", folder / "base", "--references", tmp_path / "base.jsonl")
    assert (run.code, (tmp_path / "base.jsonl").read_text()) == (3, "mine")
    assert "is there already" in run.err


def test_every_model_that_is_not_there_is_told_before_one_runs(
    fidelity: Ckpt, folder: Path, asked: Any, tmp_path: Path
) -> None:
    written = tmp_path / "base.jsonl"
    absent = (tmp_path / "one", "http://127.0.0.1:9,x", "--candidate", f"two={tmp_path / 'two'}")
    run = fidelity("--base", folder / "base", *absent, "--references", written, *asked)
    assert run.code == 3
    assert [line.partition(": ")[0] for line in run.err.splitlines()[1:]] == [
        f"  - {tmp_path / 'one'}",
        "  - http://127.0.0.1:9",
        f"  - {tmp_path / 'two'}",
    ]
    assert not written.exists()


@pytest.mark.parametrize(("most", "code"), [("0.01", 1), ("100", 0)])
def test_the_gate_decides_the_exit_code(fidelity: Ckpt, folder: Path, asked: Any, most: str, code: int) -> None:
    run = fidelity("--base", folder / "base", folder / "noisy", *asked, "--max-nll-increase", most)
    assert run.code == code
    assert ("noisy: its NLL is above the base's by more than 0.01" in run.out) == bool(code)


def test_a_gate_that_cannot_be_judged_is_an_error(fidelity: Ckpt, folder: Path, asked: Any) -> None:
    with serving_chat(folder / "base", scores=False) as url:
        run = fidelity("--base", folder / "base", f"{url},small-chat", *asked, "--max-nll-increase", "1")
    assert run.code == 3
    assert "the gate cannot be judged" in run.err
    assert "small-chat: has no NLL to compare" in run.err


def test_a_server_beside_a_folder(fidelity: Ckpt, folder: Path, asked: Any) -> None:
    with serving_chat(folder / "base") as url:
        run = fidelity("--base", url, folder / "copy", "--candidate", f"served={url}", *asked, "--json")
    document = run.document
    verdicts = {(one["measure"], one["of"], one["against"]): one["verdict"] for one in document["differences"]}
    assert verdicts["nll", "served", "base"] == "equal"
    assert [abs(one["difference"]) < 1e-4 for one in document["differences"] if one["measure"] == "nll"] == [True] * 3
    assert validate(document, "fidelity") == []


def test_nll_that_a_server_does_not_give_is_named_and_may_come_from_a_folder(
    fidelity: Ckpt, folder: Path, asked: Any
) -> None:
    with serving_chat(folder / "copy", scores=False) as url:
        without = fidelity("--base", folder / "base", "--candidate", f"served={url}", *asked)
        having = fidelity("--base", folder / "base", f"{url},small-chat", "--nll-from", folder / "copy", *asked)
    assert "NLL of served: not measured: " in without.out
    assert "gives no log-probabilities of a given text" in without.out
    assert "not measured" not in having.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("DIR",), "give --base, or --references"),
        (("--base", "DIR"), "give a candidate"),
        (("--base", "DIR", "A", "x/A"), "A: that name is taken"),
        (("--base", "DIR", "--candidate", "base=A"), "base: that name is taken"),
        (("--base", "DIR", "--candidate", "A"), "NAME=DIR or NAME=URL[,MODEL]"),
        (("--base", "DIR", "A", "B", "--nll-from", "C"), "say NAME=DIR"),
        (("--base", "DIR", "A", "--nll-from", "C=D"), "no candidate 'C'"),
        (("--base", "DIR", "A", "--template-arguments", "[1]"), "a JSON object"),
        (("--base", "DIR", "A", "--template-arguments", "{"), "a JSON object"),
        (("--base", "DIR", "A", "--device", "tpu"), "cpu, cuda or cuda:N"),
    ],
)
def test_wrong_usage_is_told(fidelity: Ckpt, arguments: tuple[str, ...], said: str) -> None:
    run = fidelity(*arguments)
    assert run.code == 2
    assert said in run.err


def test_text_of_a_model_cannot_drive_the_terminal(fidelity: Ckpt, folder: Path, asked: Any, tmp_path: Path) -> None:
    hostile = shutil.copytree(folder / "base", tmp_path / "a\x1b[2Jb")
    run = fidelity("--base", folder / "base", hostile, *asked)
    assert run.code == 0
    assert "\x1b" not in run.out
    assert "a\\x1b[2Jb" in run.out
