"""`ckpt latency` as a person or a script calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedServer, answered, routed
from speaking import COMPLETIONS, failing, speaking

from schemas import validate

pytest.importorskip("httpx")

ROOT = Path(__file__).parent.parent
HEADS = ["candidate", "first token, ms", "whole turn, ms", "ms/token", "tokens/s", "in", "out"]
QUICK = ("--output-tokens", "3", "--rounds", "5", "--warmup", "1")


def latency(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "latency", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment or None)
    assert run.returncode == code, run.stdout + run.stderr
    return run


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(routed({COMPLETIONS: speaking(running=True)}, owner="vllm")) as scripted:
        yield scripted


@pytest.fixture
def slower() -> Iterator[ScriptedServer]:
    with ScriptedServer(routed({COMPLETIONS: speaking(first=0.1, each=0.05)})) as scripted:
        yield scripted


def test_two_servers_side_by_side_as_a_table_a_document_and_a_plot(
    server: ScriptedServer, slower: ScriptedServer, tmp_path: Path
) -> None:
    target, plot = tmp_path / "out.json", tmp_path / "out.png"
    names = (f"--candidate=fast={server.url}", f"--candidate=slow={slower.url}/v1,m")
    run = latency(*names, "--streams", "1,2", *QUICK, "--output", str(target), "--plot", str(plot))
    lines = run.stdout.splitlines()
    assert lines[0] == "128 prompt tokens, cold prefix; 1 at a time; medians of 5 requests each, quartiles in brackets"
    assert re.split("  +", lines[1].strip()) == HEADS
    assert [line.split()[0] for line in lines[2:4]] == ["fast", "slow"]
    assert "medians of 10 requests each" in run.stdout
    assert "slow against fast  ms/token" in run.stdout
    assert "fast: m on vLLM at http://127.0.0.1:" in run.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    document = json.loads(target.read_text())
    assert validate(document, "latency") == []
    check_ratio(document)


def check_ratio(document: dict[str, Any]) -> None:
    """The slow server waits 50 ms a token, the fast one not at all."""
    for cell in document["cells"]:
        (found,) = [one for one in cell["differences"] if one["figure"] == "token_ms"]
        assert (found["candidate"], found["against"], found["verdict"]) == ("slow", "fast", "different")
        assert found["low"] > 1


def test_json_is_one_document_under_the_schema_and_nothing_else(server: ScriptedServer) -> None:
    run = latency(server.url, *QUICK, "--json")
    document = json.loads(run.stdout)
    assert validate(document, "latency") == []
    assert run.stderr == ""
    (candidate,) = document["candidates"]
    assert candidate == {
        "name": server.url, "url": server.url, "model": "m", "engine": "vllm", "engine_version": None
    }  # fmt: skip
    (result,) = document["cells"][0]["results"]
    assert result["counted_by"] == "server"
    assert result["output_tokens"] == {"median": 3, "low": 3, "high": 3, "count": 5}
    assert [turn["output_tokens"] for done in result["rounds"] for turn in done["turns"]] == [3] * 5
    assert document["cells"][0]["differences"] == []


def test_the_document_tells_of_drafts_and_cached_tokens_too() -> None:
    """What no server of these tests does on its own, through the same functions."""
    from latency import Candidate, Cell, Result, Round, Settings, Turn, document
    from serving import Server, Speculation

    turns = (Turn(None, 5.0, None, None, 1, 0, False),)
    found = Round(0, 0, turns, 200.0, Speculation(0.5, 2.0, (0.75, 0.25), 4, 8, 4))
    cell = Cell(128, 1, {"a": (found,), "b": ()})
    with ScriptedServer(routed({})) as scripted:
        candidates = tuple(Candidate(name, Server(scripted.url, "m")) for name in ("a", "b"))
        made = document(Result(candidates, Settings(), "r", (cell,)))
    assert validate(made, "latency") == []
    assert made["cells"][0]["results"][0]["counted_by"] == "pieces"
    assert made["cells"][0]["results"][0]["speculation"]["drafts"] == 4


def test_acceptance_of_drafts_is_told(server: ScriptedServer) -> None:
    page = Path(__file__).parent / "data" / "vllm_0.32_metrics.txt"
    counted = [0]

    def metrics(request: Any) -> Iterator[bytes]:
        """A real page, on which every reading doubles what was there."""
        counted[0] += 1
        lines = [
            f"{line.rpartition(' ')[0]} {float(line.rpartition(' ')[2]) * counted[0]}"
            for line in page.read_text().replace("smollm2", "m").splitlines()
            if line.startswith("vllm:spec_decode") and "_total" in line
        ]
        yield answered("\n".join(lines), kind="text/plain")

    routes = {COMPLETIONS: speaking(running=True), "/metrics": metrics}
    with ScriptedServer(routed(routes, owner="vllm")) as scripted:
        run = latency(f"--candidate=a={scripted.url}", *QUICK)
    assert "a: drafts accepted 21.4%, 1.64 tokens a step, by position 28.6% 21.4% 14.3%" in run.stdout


def test_a_failure_after_the_first_round_is_told_and_ends_with_3(server: ScriptedServer) -> None:
    refusal = answered({"detail": "\x1b[2Jno"}, "503 Service Unavailable")
    with ScriptedServer(routed({COMPLETIONS: failing({3}, refusal)})) as scripted:
        run = latency(f"--candidate=a={server.url}", f"--candidate=b={scripted.url}", *QUICK, code=3)
    assert "b failed in round 2: http://127.0.0.1:" in run.stdout
    assert "HTTP 503: \\x1b[2Jno" in run.stdout
    assert "medians of 2 or 5 requests each" in run.stdout


def test_a_server_that_is_not_there_ends_with_3_and_one_line() -> None:
    run = latency("http://127.0.0.1:9", code=3)
    assert run.stdout == ""
    assert "Is the server running" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_key_is_sent_and_never_printed(server: ScriptedServer) -> None:
    run = latency(server.url, *QUICK, "--api-key-env", "SOME_KEY", "--json", **os.environ, SOME_KEY="secret-key-1")
    assert "secret-key-1" not in run.stdout + run.stderr
    assert {one.request.headers.get("authorization") for one in server.sent} == {"Bearer secret-key-1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the address of a server"),
        (("--candidate", "http://127.0.0.1:9"), "NAME=URL[,MODEL]"),
        (("http://127.0.0.1:9", "http://127.0.0.1:9"), "several candidates of that name"),
        (("http://127.0.0.1:9", "--streams", "0"), "whole numbers above 0 between commas"),
        (("http://127.0.0.1:9", "--prompt-tokens", "128;256"), "whole numbers above 0 between commas"),
        (("http://127.0.0.1:9", "--plot", "x.jpg"), "ends in .png or .svg"),
    ],
)
def test_wrong_usage_is_told_before_a_server_is_asked(arguments: tuple[str, ...], said: str) -> None:
    from click.testing import CliRunner

    from ckpt.latency import command

    run = CliRunner().invoke(command, arguments)
    assert run.exit_code == 2
    assert said in run.output


def test_a_real_server_is_measured_in_bf16_and_at_int4(
    transformers_server: str, smollm2_base: Path, smollm2_int4: Path
) -> None:
    names = (f"BF16={transformers_server},{smollm2_base}", f"INT4={transformers_server},{smollm2_int4}")
    candidates = [word for name in names for word in ("--candidate", name)]
    shape = ("--prompt-tokens", "24", "--output-tokens", "3", "--rounds", "1", "--warmup", "1", "--json")
    document = json.loads(latency(*candidates, *shape).stdout)
    assert validate(document, "latency") == []
    results = {one["candidate"]: one for one in document["cells"][0]["results"]}
    for one in results.values():
        assert one["counted_by"] == "server"
        assert one["output_tokens"]["median"] == 3
        assert one["prompt_tokens"]["median"] == pytest.approx(24, abs=6)
        assert 0 < one["first_ms"]["median"] < one["whole_ms"]["median"]
        assert one["speculation"] is None
    assert {one["verdict"] for one in document["cells"][0]["differences"]} == {"too few rounds"}
