"""What a client says of a server that is not there, refuses, breaks off, never ends, or lies: on real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import pytest
from scripted import (
    HANG_UP,
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    Script,
    ScriptedServer,
    Step,
    answered,
    chunk,
    event,
    models,
    piece,
    routed,
)
from served import free_port

from serving import Ask, Declined, Server, ServerFault, parse_metrics

pytest.importorskip("httpx")

ASK = Ask("Once", max_tokens=4)


def fixed(*steps: Step) -> Script:
    return lambda request: steps


def streaming(*steps: Step) -> Script:
    return routed({"/v1/completions": fixed(STREAM_HEAD, *steps)})


def completing(*steps: Step) -> Script:
    return routed({"/v1/completions": fixed(*steps)})


def fault_of(script: Script, *, stream: bool = False, **options: float) -> ServerFault:
    with ScriptedServer(script) as scripted, Server(scripted.url, "m", timeout=options.get("timeout", 5.0)) as server:
        with pytest.raises(ServerFault) as caught:
            server.stream(ASK) if stream else server.answer(ASK)
        assert scripted.url in str(caught.value)
        return caught.value


def test_a_server_that_is_not_there_is_named_with_its_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Server(url, "m") as server, pytest.raises(ServerFault, match=r"refused.*Is the server running") as caught:
        server.answer(ASK)
    assert caught.value.problems[0].code == "server-unreachable"
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "too long", "code": 400}}, "HTTP 400: too long"),
        ({"object": "error", "message": "too long"}, "HTTP 400: too long"),
        ({"detail": "too long"}, "HTTP 400: too long"),
        ({"error": "too long"}, "HTTP 400: too long"),
        ("<html>too long", "HTTP 400: <html>too long"),
        ("", "HTTP 400: no reason given"),
        ("[" * 100_000, "HTTP 400: [[["),
    ],
)
def test_a_refusal_says_what_the_server_says(body: object, said: str) -> None:
    fault = fault_of(completing(answered(body, "400 Bad Request")))
    assert isinstance(fault, Declined)
    assert fault.status == 400
    assert said in str(fault)


def test_text_of_a_server_cannot_drive_a_terminal_nor_fill_it() -> None:
    text = str(fault_of(completing(answered("\x1b[2J\u202e" + "x" * 50_000, "500 Internal Server Error"))))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    assert "\u202e" not in text
    assert len(text) < 600


def test_a_model_that_is_not_served_is_told_with_those_that_are() -> None:
    def script(request: Request) -> Iterable[Step]:
        if request.path == "/v1/models":
            return [models("large", "small")]
        return [answered({"error": {"message": "The model `m` does not exist."}}, "404 Not Found")]

    assert "does not exist.; expected a model that it lists: large, small" in str(fault_of(script))


@pytest.mark.parametrize(
    ("names", "said"), [((), "lists no model. Name"), (("a", "b"), "lists 2 models; expected a, b. Name")]
)
def test_without_a_name_a_single_model_is_needed(names: tuple[str, ...], said: str) -> None:
    with ScriptedServer(fixed(models(*names))) as scripted, Server(scripted.url) as server:
        with pytest.raises(ServerFault, match=said):
            server.answer(ASK)
        assert not scripted.requests("/v1/completions")


def test_the_only_model_needs_no_name() -> None:
    with ScriptedServer(completing(answered({"choices": [{"text": "x"}]}))) as scripted:
        with Server(scripted.url) as server:
            server.answer(ASK)
        assert scripted.requests("/v1/completions")[0].body["model"] == "m"


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-key-1")
    with ScriptedServer(fixed(models("m"))) as other:
        away = answered("", "307 Temporary Redirect", Location=f"{other.url}/v1/completions")
        with ScriptedServer(completing(away)) as scripted, Server(scripted.url, "m", "SOME_KEY") as server:
            with pytest.raises(Declined, match=r"redirects to http.*Give the address"):
                server.answer(ASK)
            assert scripted.requests("/v1/completions")[0].headers["authorization"] == "Bearer secret-key-1"
        assert not other.sent


def test_a_key_that_the_server_repeats_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-key-1")
    wrong = answered({"error": {"message": "Incorrect API key: secret-key-1"}}, "401 Unauthorized")
    with ScriptedServer(completing(wrong)) as scripted, Server(scripted.url, "m", "SOME_KEY") as server:
        with pytest.raises(Declined) as caught:
            server.answer(ASK)
        assert "Incorrect API key: [the key]" in str(caught.value)
        assert "secret-key-1" not in repr(server) + repr(server.address) + repr(caught.value)


@pytest.mark.parametrize("value", [None, "", "  ", "a b", "a\nb", "kéy"])
def test_a_key_that_cannot_be_sent_is_refused_unseen(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ServerFault, match="environment variable SOME_KEY") as caught:
        Server("http://127.0.0.1:1", "m", "SOME_KEY")
    assert not (value and value.strip()) or value not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://host:port",
        "http://user:pw@host",
        "http://host/?a=b",
        "http://host/#a",
        "http://ho st",
        "http://[::1",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ServerFault, match="expected http://host:port") as caught:
        Server(url, "m")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_the_version_of_the_protocol_or_not(path: str) -> None:
    with ScriptedServer(completing(answered({"choices": [{"text": "x"}]}))) as scripted:
        with Server(scripted.url + path, "m") as server:
            assert server.answer(ASK).text == "x"
        assert scripted.requests("/metrics")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("no json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no object"),
        ("{}", "without choices"),
        ('{"choices": []}', "without choices"),
        ('{"choices": [1]}', "no object: 1"),
        ('{"choices": [{"text": 1}]}', "text is no text: 1"),
        ('{"choices": [{"text": "x"}], "usage": {"prompt_tokens": -1}}', "prompt_tokens is no count: -1"),
        ('{"choices": [{"text": "x"}], "usage": {"prompt_tokens": true}}', "prompt_tokens is no count: True"),
        ('{"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [2]}}]}', "no log-probability: 2"),
        ('{"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [NaN]}}]}', "not JSON"),
    ],
)
def test_an_answer_that_is_none_is_told(body: str, said: str) -> None:
    fault = fault_of(completing(answered(body)))
    assert fault.problems[0].code == "answer-garbled"
    assert said in str(fault)


def test_an_answer_that_was_compressed_unasked_is_refused() -> None:
    assert "compressed" in str(fault_of(completing(answered(b"\x1f\x8b", Content_Encoding="gzip"))))


class TestStream:
    def test_that_is_cut_within_a_chunk(self) -> None:
        fault = fault_of(streaming(piece("a"), b"ff\r\ndata: {", HANG_UP), stream=True)
        assert fault.problems[0].code == "connection-broken"

    def test_that_is_closed_before_the_answer_ended(self) -> None:
        fault = fault_of(streaming(piece("a"), piece("b"), LAST_CHUNK), stream=True)
        assert "ended before the answer, after 2 events" in str(fault)

    def test_that_says_an_error_in_its_midst(self) -> None:
        broken = event({"error": {"message": "out of memory", "code": 500}})
        fault = fault_of(streaming(piece("a"), broken, event("[DONE]"), LAST_CHUNK), stream=True)
        assert "the server broke off: out of memory" in str(fault)

    def test_whose_event_is_no_json(self) -> None:
        assert "not JSON" in str(fault_of(streaming(event("{"), event("[DONE]"), LAST_CHUNK), stream=True))

    def test_whose_chunk_has_no_length(self) -> None:
        assert fault_of(streaming(b"zz\r\n"), stream=True).problems[0].code == "connection-broken"

    def test_that_is_none(self) -> None:
        fault = fault_of(completing(answered({"choices": [{"text": "x"}]})), stream=True)
        assert "no stream of events but application/json" in str(fault)

    def test_that_falls_silent(self) -> None:
        begun = time.monotonic()
        fault = fault_of(streaming(piece("a"), 30.0), stream=True, timeout=0.5)
        assert fault.problems[0].code == "server-timeout"
        assert time.monotonic() - begun < 5

    def test_that_trickles_for_ever(self) -> None:
        def script(request: Request) -> Iterable[Step]:
            yield STREAM_HEAD
            while True:
                yield chunk(b": still here\n\n")
                yield 0.05

        begun = time.monotonic()
        fault = fault_of(routed({"/v1/completions": script}), stream=True, timeout=0.6)
        assert "not complete after 0.6 s" in str(fault)
        assert time.monotonic() - begun < 5

    def test_that_is_one_event_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("serving.sse.LARGEST_EVENT", 100_000)
        endless = (chunk(b"data: " + b"x" * 60_000), chunk(b"x" * 60_000))
        assert "an event of more than 100,000 bytes" in str(fault_of(streaming(*endless), stream=True))

    def test_that_is_larger_than_any_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("serving.wire.LARGEST_ANSWER", 100_000)
        many = [chunk(b": x\n\n" * 10_000)] * 4
        assert "an answer of more than 100,000 bytes" in str(fault_of(streaming(*many), stream=True))

    def test_that_is_left_open_ends_where_it_says_so(self) -> None:
        script = streaming(piece("a", "stop"), event("[DONE]"), 30.0)
        begun = time.monotonic()
        with ScriptedServer(script) as scripted, Server(scripted.url, "m", timeout=20) as server:
            assert server.stream(ASK).answer.text == "a"
        assert time.monotonic() - begun < 10

    def test_is_asked_for_without_counts_where_the_server_refuses_to_count(self) -> None:
        def script(request: Request) -> Iterable[Step]:
            if "stream_options" in request.body:
                return [answered({"detail": "Unexpected fields: stream_options"}, "422 Unprocessable Content")]
            return [STREAM_HEAD, piece("a"), piece("b", "length"), event("[DONE]"), LAST_CHUNK]

        with ScriptedServer(routed({"/v1/completions": script})) as scripted, Server(scripted.url, "m") as server:
            streams = [server.stream(ASK), server.stream(ASK)]
            assert [(stream.tokens, stream.by_usage) for stream in streams] == [(2, False), (2, False)]
            assert len(scripted.requests("/v1/completions")) == 3


def test_a_connection_that_was_closed_meanwhile_is_opened_anew() -> None:
    """Uvicorn says nothing when it closes a connection that was idle, or that had an error."""

    def script(request: Request) -> Iterable[Step]:
        yield answered({"choices": [{"text": str(request.number)}]}) if request.number != 1 else HANG_UP

    with ScriptedServer(routed({"/v1/completions": script})) as scripted, Server(scripted.url, "m") as server:
        assert [server.answer(ASK).text for _ in range(2)] == ["0", "2"]


def test_a_server_that_always_hangs_up_is_told() -> None:
    assert fault_of(completing(HANG_UP)).problems[0].code == "connection-broken"


def test_metrics_that_are_garbage_are_no_fault() -> None:
    page = b'\xff\x00{\nvllm:x{a="b} 1\nvllm:y 2\nvllm:z one\n# vllm:y 7\nvllm:y{model_name="m"} 3\n'
    script = routed({"/metrics": fixed(answered(page, kind="text/plain"))})
    with ScriptedServer(script) as scripted, Server(scripted.url, "m") as server:
        metrics = server.metrics()
        assert metrics is not None
        assert metrics.total("vllm:y") == 5
        assert server.engine.name == "vllm"


def test_a_server_without_metrics_has_none() -> None:
    with ScriptedServer(routed({})) as scripted, Server(scripted.url, "m") as server:
        assert server.metrics() is None
        assert server.engine.name == "other"
    assert parse_metrics("").samples == ()


def test_httpx_missing_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from checkpoint.errors import MissingExtra

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs the package httpx.*ckpt-surgery\[serve\]"):
        Server("http://127.0.0.1:1", "m")


def test_requests_are_greedy_and_have_only_what_the_engine_knows() -> None:
    ask = Ask("x", max_tokens=3, ignore_eos=True)
    bodies = {}
    for owner in ("nobody", "vllm", "sglang"):
        script = routed({"/v1/completions": fixed(answered({"choices": [{"text": "x"}]}))}, owner)
        with ScriptedServer(script) as scripted, Server(scripted.url) as server:
            server.answer(ask)
            bodies[owner] = json.loads(json.dumps(scripted.requests("/v1/completions")[0].body))
    plain = {"model": "m", "prompt": "x", "max_tokens": 3, "temperature": 0}
    assert bodies["nobody"] == plain
    assert bodies["vllm"] == bodies["sglang"] == plain | {"ignore_eos": True, "repetition_penalty": 1}
