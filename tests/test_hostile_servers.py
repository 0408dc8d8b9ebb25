"""Servers and files that want to harm who measures and compares models: some trials; all are tried by
`python -m reliability.hostile servers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from scripted import LAST_CHUNK, STREAM_HEAD, Request, ScriptedServer, Step, chunk, event, piece, routed

from checkpoint import Refused
from checkpoint.document import MAX_DEPTH
from ckpt.__main__ import _show_notes
from fidelity import read_prompts, read_references
from fidelity.probes import passes
from reliability.hostile.execution import ROOT
from reliability.hostile.served import trials
from reliability.hostile.trial import Trial, carried_out
from serving import Ask, Server, ServerAddress, ServerFault, engines, parse_metrics, speculation
from serving.engines import of_models
from serving.reading import Garbled, answer_of, ids_of, value_of
from serving.sse import EventReader

pytest.importorskip("httpx")

CHOSEN = (
    "ckpt latency, all names of a server: a line of its own",
    "ckpt latency --json, all names of a server: a noncharacter",
    "ckpt fidelity, all names of a server: an escape sequence", "ckpt fidelity --json, all names of a server: quotes",
    "ckpt fidelity, an error that says a link of OSC 8", "ckpt latency, a type of content: C1 controls",
    "ckpt latency, a server that redirects", "ckpt latency, a server with numbers beyond all",
    "ckpt fidelity, a server with an error nested deep", "ckpt latency, a server with a model that is half a character",
)  # fmt: skip
ASK = Ask("Once", max_tokens=4)
SOON = 3.0
"""Seconds in which what took minutes is over."""


@pytest.mark.parametrize("trial", [one for one in trials() if one.name in CHOSEN], ids=lambda trial: trial.name)
def test_a_server_harms_nobody(trial: Trial) -> None:
    carried_out(trial)


def test_all_that_was_chosen_is_there() -> None:
    assert set(CHOSEN) <= {trial.name for trial in trials()}


def in_time(act: Callable[[], Any]) -> Any:
    begun = time.monotonic()
    found = act()
    assert time.monotonic() - begun < SOON
    return found


def fault_of(*steps: Step, ever: Iterable[Step] = (), timeout: float = 5.0) -> ServerFault:
    """What a client says of a server that answers with `steps`, and then with `ever` for ever."""

    def script(request: Request) -> Iterable[Step]:
        yield from steps
        while ever:
            yield from ever

    with (
        ScriptedServer(routed({"/v1/completions": script})) as scripted,
        Server(scripted.url, "m", timeout=timeout) as server,
    ):
        with pytest.raises(ServerFault) as caught:
            in_time(lambda: server.stream(ASK))
        return caught.value


@pytest.mark.parametrize("ever", [(b"X", 0.05), (b"HTTP/1.1 102 Processing\r\n\r\n", 0.05)], ids=["a head", "news"])
def test_what_has_no_end_before_an_answer_ends_with_its_time(ever: tuple[Step, ...]) -> None:
    fault = fault_of(b"HTTP/1.1 200 OK\r\nX: " if ever[0] == b"X" else b"", ever=ever, timeout=0.4)
    assert fault.problems[0].code == "server-timeout"
    assert "not complete after 0.4 s" in str(fault)


def test_a_connection_that_is_cut_in_time_is_no_end_of_an_answer() -> None:
    fault = fault_of(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", piece("a", "stop"), 9.0, timeout=0.4
    )
    assert fault.problems[0].code == "server-timeout"


def test_more_events_than_an_answer_has_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.wire.MOST_EVENTS", 100)
    assert "a stream of more than 100 events" in str(fault_of(STREAM_HEAD, *[chunk(b"data\n\n" * 60)] * 2, LAST_CHUNK))


def test_more_text_than_was_asked_for_is_refused() -> None:
    fault = fault_of(STREAM_HEAD, piece("x" * 5_000, "length"), event("[DONE]"), LAST_CHUNK)
    assert "5,000 characters in place of 4 tokens" in str(fault)


def test_a_stream_ends_where_it_says_so_whatever_comes_in_the_same_piece() -> None:
    done = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\ndata: {\n\n'
    script = routed({"/v1/completions": lambda request: [STREAM_HEAD, chunk(done), LAST_CHUNK]})
    with ScriptedServer(script) as scripted, Server(scripted.url, "m") as server:
        assert server.stream(ASK).answer.text == "a"


def test_an_event_in_many_pieces_takes_no_longer_than_in_one() -> None:
    reader = EventReader()
    in_time(lambda: [reader.feed(b"x" * 64) for _ in range(1 << 16)])


@pytest.mark.parametrize("raw", [b"\n\xef\xbb\xbfdata:x\n\n", b"\xef\xbb\xbfdata:x\n\n", b"\xef\xbbdata:x\r\n\r\n"])
def test_a_byte_order_mark_is_one_at_the_very_beginning_alone(raw: bytes) -> None:
    reader = EventReader()
    single = [one for at in range(len(raw)) for one in reader.feed(raw[at : at + 1])]
    assert single == EventReader().feed(raw) == ([b"x"] if raw.startswith(b"\xef\xbb\xbf") else [])


def test_metrics_of_braces_are_read_in_time() -> None:
    page = ("vllm:a{" + "}" * 9_900 + " x y\n") * 200 + "vllm:b 1\n"
    assert in_time(lambda: parse_metrics(page).total("vllm:b")) == 1


@pytest.mark.parametrize("value", ["1.7e308", "-1", "NaN", "9" * 5_000])
def test_counters_that_are_none_tell_nothing_of_drafts(value: str) -> None:
    what = ("drafts", "draft_tokens", "accepted_tokens")
    page = "".join(f"vllm:spec_decode_num_{one}_total{{n={n}}} {value}\n" * 2 for one in what for n in ('"0"', '"1"'))
    assert speculation(engines()["vllm"], parse_metrics(""), parse_metrics(page)) is None


@pytest.mark.parametrize("place", ["9" * 5_000, "-1", "x", "\u0661"])
def test_a_position_that_is_none_is_left_out(place: str) -> None:
    what = {"drafts": 2, "draft_tokens": 2, "accepted_tokens": 1}
    page = "".join(f"vllm:spec_decode_num_{one}_total {value}\n" for one, value in what.items())
    page += f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} 1\n'
    found = speculation(engines()["vllm"], parse_metrics(""), parse_metrics(page))
    assert found is not None
    assert (found.acceptance, found.by_position) == (0.5, ())


@pytest.mark.parametrize(
    "raw",
    [b"9" * 101, b"NaN", b"Infinity", b"[" * 128 + b"]" * 128, b"[" * 100_000, b"", b"\xff"],
    ids=lambda raw: raw[:9],
)
def test_json_of_a_server_is_read_within_bounds(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"digits|number|deep|Expecting|decode"):
        value_of(raw)


@pytest.mark.parametrize("raw, value", [(b"9" * 100, 10**100 - 1), (b"-Infinity", -float("inf")), (b"1e9", 1e9)])
def test_json_within_them_is_read(raw: bytes, value: float) -> None:
    assert value_of(raw) == value
    assert value_of(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [10**99]}}]},
        {"choices": [{"text": "x", "token_ids": [-1]}]},
        {"tokens": [True]},
        {"tokens": None},
    ],
)
def test_numbers_that_are_none_are_garbled(document: dict[str, Any]) -> None:
    with pytest.raises(Garbled):
        ids_of(document) if "tokens" in document else answer_of(document)


def test_a_key_in_what_is_garbled_is_not_told() -> None:
    with pytest.raises(Garbled) as caught:
        answer_of({"choices": [{"text": ["x" * 40 + "secret-key-1" + "y" * 40]}]})
    assert "secret" not in caught.value.told("secret-key-1")


def test_an_owner_that_is_no_text_is_nobody() -> None:
    assert of_models([{"owned_by": []}, {"owned_by": {}}, {}]) is None


@pytest.mark.parametrize("url", ["http://user:pw1234@ho\u2100st", "http://user:pw/1234@host", "http://user:pw1234@"])
def test_a_password_is_not_shown_however_the_address_is_wrong(url: str) -> None:
    with pytest.raises(ServerFault, match="the address") as caught:
        ServerAddress.parse(url)
    assert "1234" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host?", "http://host#", "http://ho>st", "http://ho\\st"])
def test_an_address_that_two_would_read_otherwise_is_refused(url: str) -> None:
    with pytest.raises(ServerFault):
        ServerAddress.parse(url)


def test_a_host_may_be_called_as_the_version_of_the_protocol() -> None:
    assert [ServerAddress.parse(url).api for url in ("http://v1", "http://v1/v1")] == ["http://v1/v1"] * 2


def test_an_error_that_is_its_own_cause_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("x")
    error.add_note("a note\x1b[2J")
    error.__cause__ = error
    in_time(lambda: _show_notes(error))
    assert capsys.readouterr().err == "ckpt: a note\\x1b[2J\n"


def lines(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


DEEP = f'{{"id": "a", "messages": [{{"role": "user", "content": "x", "y": {"[" * 900 + "]" * 900}}}]}}'


@pytest.mark.parametrize(
    "records, said",
    [
        ([DEEP], "nested more than 127 deep"),
        (["x"] * 5_000, "and more such"),
        ([{"id": "a", "prompt": "x"}] * 2_000, "and more such"),
    ],
)
def test_prompts_are_read_within_bounds(records: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=said) as caught:
        read_prompts(lines(tmp_path / "x.jsonl", records))
    assert len(caught.value.problems) <= 1_000


def test_more_prompts_than_anybody_asks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fidelity.jsonl.MOST_LINES", 2)
    records = [{"id": name, "prompt": "x"} for name in "abc"]
    assert len(read_prompts(lines(tmp_path / "x.jsonl", records[:2])).prompts) == 2
    with pytest.raises(Refused, match="more than 2 lines"):
        read_prompts(lines(tmp_path / "y.jsonl", records))


def test_as_many_tokens_as_no_model_says_are_refused(tmp_path: Path) -> None:
    asked = read_prompts(lines(tmp_path / "x.jsonl", [{"id": "a", "prompt": "x"}]))
    head = {
        "kind": "ckpt fidelity references",
        "version": 1,
        "dtype": None,
        "unscored": None,
        "model": "m",
        "engine": "e",
    }
    head |= {"layout": {"by": "raw", "sha256": None, "arguments": {}}}
    head |= {"prompts": {"name": "x.jsonl", "count": 1, "sha256": asked.sha256}}
    reply = {"id": "a", "text": "x", "finish": None, "prompt_ids": None, "ids": None, "nll": None}

    def most(tokens: float) -> Any:
        heads = head | {"sampling": {"temperature": 0, "max_tokens": tokens}}
        return read_references(lines(tmp_path / "r.jsonl", [heads, reply]), asked).max_tokens

    assert type(most(4.0)) is int
    with pytest.raises(Refused, match="1e\\+300"):
        most(1e300)


def test_fences_that_never_close_are_looked_at_once() -> None:
    text = "```a\n" * 50_000
    assert in_time(lambda: passes(text, {"probe": "code_fence"})) is False
    assert passes(f"{text}x\n```", {"probe": "code_fence", "language": "a"})


BAR = """
import time
from ckpt.output import Output
with Output().progress("writing", 2) as advance:
    advance("x[/] [/bold] \\\\[", 1)
    time.sleep(0.2)
"""


def test_a_bar_of_progress_shows_brackets_as_they_are(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", BAR],
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        check=False,
    )
    os.close(theirs)
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "writing x[/] [/bold] \\[" in said


def test_a_word_of_the_command_line_cannot_drive_a_terminal() -> None:
    words = ["fidelity", "a", "--base", "b", "--nll-from", "\x1b[2J=x"]
    done = subprocess.run([sys.executable, "-m", "ckpt", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--nll-from \\x1b[2J=x" in done.stderr
