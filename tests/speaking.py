"""Scripted servers that answer completions, and a measurement of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from scripted import (
    HANG_UP,
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    Script,
    ScriptedServer,
    Step,
    answered,
    event,
    piece,
    routed,
    total,
)

from latency import Candidate, Result, Settings, measure
from serving import Server

COMPLETIONS = "/v1/completions"


def tokens_in(prompt: str) -> int:
    """What these servers call a token: a word, or a digit."""
    return sum(len(word) if word[:1].isdigit() else 1 for word in prompt.split())


def speaking(
    *, first: float = 0.0, each: float = 0.0, bunch: int = 1, running: bool = False, tokens: int | None = None
) -> Script:
    """Answers a request for n tokens in pieces of `bunch`, after `first` and then every `each` seconds."""

    def script(request: Request) -> Iterable[Step]:
        count, prompt = tokens or request.body["max_tokens"], tokens_in(request.body["prompt"])
        usage = {"prompt_tokens": prompt, "completion_tokens": 1}
        if not request.body.get("stream"):
            yield answered({"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage})
            return
        yield STREAM_HEAD
        yield first
        for done in range(0, count, bunch):
            if done:
                yield each
            upto = min(count, done + bunch)
            yield piece("x" * (upto - done), "length" if upto == count else None, upto if running else None, prompt)
        yield total(count, prompt)
        yield event("[DONE]")
        yield LAST_CHUNK

    return script


def failing(numbers: set[int], step: Step = HANG_UP) -> Script:
    """Speaks, but fails when it is asked for a stream the time that `numbers` says, counted from 0."""
    asked = [0]

    def script(request: Request) -> Iterable[Step]:
        if request.body.get("stream"):
            asked[0] += 1
            if asked[0] - 1 in numbers:
                return [step]
        return speaking()(request)

    return script


def measured(
    settings: Settings, *scripts: Script, owner: str = "nobody", more: list[ScriptedServer] | None = None
) -> Result:
    """The result for a server of each script; the servers, with their records, are put into `more`."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(routed({COMPLETIONS: script}, owner))) for script in scripts]
        if more is not None:
            more += servers
        candidates = [Candidate(f"c{number}", Server(one.url, timeout=20)) for number, one in enumerate(servers)]
        return measure(candidates, settings)


def streamed(server: ScriptedServer) -> list[Request]:
    return [request for request in server.requests(COMPLETIONS) if request.body.get("stream")]
