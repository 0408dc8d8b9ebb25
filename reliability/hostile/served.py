"""Servers that want to do harm: to who measures them with `ckpt latency` or compares them with `ckpt fidelity`.

Each trial runs both commands against a server on loopback under an audit hook, with a key. What they say has nothing
that only a server can have brought, and never the key; nobody but that server is connected to; and they end.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from reliability.fuzzing.target import expect
from reliability.hostile.answering import STREAM, Answering, Request, Say, Step, answered, event, head, speaking
from reliability.hostile.execution import Ways, heard, is_to
from reliability.hostile.terminal import NAMES, judged
from reliability.hostile.trial import Trial

KEY = "HOSTILE_KEY"
SECRET = "sk-hostile-0123456789"
SECONDS = 2
"""That an answer may take. All of a command is over in MOST."""

MOST = 30

PROMPTS = '{"id": "a", "prompt": "One two"}\n{"id": "b", "prompt": "Three four five", "long": true}\n'
COMMON = ("--api-key-env", KEY, "--timeout", str(SECONDS))
LATENCY = ("latency", "{url}", "--rounds", "1", "--warmup", "0", "--output-tokens", "2", "--prompt-tokens", "16")
FIDELITY = ("fidelity", "--base", "{url}", "{url}", "--prompts", "{room}/prompts.jsonl")
COMMANDS: Mapping[str, Sequence[str]] = {
    "latency": (*LATENCY, *COMMON),
    "latency --json": (*LATENCY, *COMMON, "--json"),
    "latency --chat": (*LATENCY, *COMMON, "--chat", "--output", "{room}/document.json"),
    "fidelity": (*FIDELITY, *COMMON, "--references", "{room}/references.jsonl"),
    "fidelity --json": (*FIDELITY, *COMMON, "--json"),
    "fidelity --raw": (*FIDELITY, *COMMON, "--raw"),
}
SHORT = ("latency", "fidelity")
"""Of servers that harm before anything is told."""

SUPPORTING = ("/v1/models", "/version", "/metrics", "/tokenize")
ERROR = b"500 Internal Server Error"
MEBIBYTE = 1 << 20


def trials() -> Iterator[Trial]:
    """All of them: every name in all that a server says of itself; every way not to answer."""
    for how, name in NAMES.items():
        for what, words in COMMANDS.items():
            yield Trial(f"ckpt {what}, all names of a server: {how}", _trial(words, speaking(name, SECRET), ends=True))
        for what in SHORT:
            yield Trial(f"ckpt {what}, an error that says {how}", _trial(COMMANDS[what], _refusing(name)))
            yield Trial(f"ckpt {what}, a type of content: {how}", _trial(COMMANDS[what], _typed(name)))
    for how, say in WAYS.items():
        for what in SHORT:
            yield Trial(f"ckpt {what}, a server with {how}", _trial(COMMANDS[what], say))
    for what in SHORT:
        yield Trial(f"ckpt {what}, a server that redirects", _redirected(COMMANDS[what]))


def _trial(words: Sequence[str], say: Say, *, ends: bool = False) -> Callable[[Path], None]:
    """`ends`: the server lets the command come to its end, so that what is told of all names is judged."""

    def run(room: Path) -> None:
        with Answering(say) as server:
            done = _asked(words, server, room)
        expect(done.returncode in ((0,) if ends else (0, 1, 3)), f"ends with {done.returncode}: {done.stderr[-300:]}")

    return run


def _redirected(words: Sequence[str]) -> Callable[[Path], None]:
    """The other server, who waits for the key, hears nothing."""

    def run(room: Path) -> None:
        with Answering(speaking("m")) as other:
            place = f"Location: {other.url}/v1/completions?key={SECRET}\r\n".encode()
            with Answering(lambda request: [head(status=b"307 Temporary Redirect", more=place)]) as server:
                done = _asked(words, server, room)
            expect(done.returncode == 3 and "redirects" in done.stderr, f"said {done.stderr[-300:]}")
            expect(not other.asked, f"asked another server: {other.asked}")

    return run


def _asked(words: Sequence[str], server: Answering, room: Path) -> subprocess.CompletedProcess[str]:
    """What a command says of the server, judged, as are the files that it writes."""
    (room / "prompts.jsonl").write_text(PROMPTS)
    (room / "bait").mkdir()
    filled = [word.format(url=server.url, room=room) for word in words]
    begun = time.monotonic()
    done, events = heard(Ways(room / "bait", room, room, room / "RUN"), filled, **{KEY: SECRET})
    expect(time.monotonic() - begun < MOST, "the command does not end")
    judged(done.stdout, "json" if "--json" in words else "text")
    judged(done.stderr, "text")
    expect("Traceback" not in done.stderr, f"a traceback: {done.stderr[-300:]}")
    written = [path.read_text() for path in room.iterdir() if path.suffix in (".json", ".jsonl")]
    expect(SECRET not in "".join((done.stdout, done.stderr, *written)), "the key is told")
    expect(len(server.asked) > 0, "the server was not asked")
    expect(all(is_to(server, one) for one in events), f"{events}")
    return done


def _refusing(name: str) -> Say:
    """Works until it is to answer; then an error in each of the spellings that there are, or none of them."""
    spellings = (
        {"error": {"message": f"{name} {SECRET}"}},
        {"object": "error", "message": f"{SECRET}{name}"},
        {"detail": [{"msg": name, "key": [SECRET]}]},
        f"{name}{SECRET}",
    )
    number = count()

    def say(request: Request) -> Iterator[Step]:
        if request.path in SUPPORTING:
            yield from speaking("m")(request)
        else:
            yield answered(spellings[next(number) % len(spellings)], ERROR)

    return say


def _typed(name: str) -> Say:
    kind = f"{name} {SECRET}".replace("\r", "").replace("\n", "").encode("utf-8", "surrogatepass")

    def say(request: Request) -> Iterator[Step]:
        if request.path in SUPPORTING:
            yield from speaking("m")(request)
        else:
            yield head(kind) + json.dumps({"choices": [{"text": 1, "finish_reason": SECRET}]}).encode()

    return say


def _answering(*steps: Step, path: str = "") -> Say:
    """Works, but for what it answers when it is asked for `path`, or for any completion."""
    return _instead(lambda request: steps, path)


def _instead(other: Say, path: str = "") -> Say:
    def say(request: Request) -> Iterator[Step]:
        is_meant = request.path == path if path else request.path not in SUPPORTING
        yield from other(request) if is_meant else speaking("m")(request)

    return say


def _for_ever(*steps: Step) -> Callable[[Request], Iterator[Step]]:
    """The first step once, the others without end."""

    def say(request: Request) -> Iterator[Step]:
        yield steps[0]
        while True:
            yield from steps[1:]

    return say


TEXT = {"choices": [{"text": "x", "finish_reason": None}]}
HUGE = b"9" * 5_000
LIES = b"\n".join(
    b'vllm:spec_decode_num_%s_total{position="%s"} %s' % (what, HUGE, number)
    for what in (b"drafts", b"draft_tokens", b"accepted_tokens", b"accepted_tokens_per_pos")
    for number in (b"1.7e308", b"1.7e308", b"-1", b"NaN", HUGE)
)
SLOW = (b"vllm:a{" + b"}" * 9_900 + b" x y\n") * 2_000
WAYS: Mapping[str, Say] = {
    "a head without end": _instead(_for_ever(b"HTTP/1.1 200 OK\r\n", b"X", 0.05)),
    "a head without end, from the first": _instead(_for_ever(b"HTTP/1.1 200 OK\r\n", b"X", 0.05), "/v1/models"),
    "news before the answer, without end": _instead(_for_ever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.01)),
    "a stream without end": _instead(_for_ever(STREAM, event(TEXT), 0.01)),
    "a stream without end, as fast as it can": _instead(_for_ever(STREAM, event(TEXT) * 500)),
    "events of nothing, as fast as it can": _instead(_for_ever(STREAM, b"data\n\n" * 10_000)),
    "an event of lines, as fast as it can": _instead(_for_ever(STREAM, b"data\n" * 10_000)),
    "a gigantic event": _instead(_for_ever(STREAM + b"data: ", b"x" * MEBIBYTE)),
    "a gigantic answer": _instead(_for_ever(head(), b" " * MEBIBYTE)),
    "gigantic metrics": _instead(_for_ever(head(), b"\n" * MEBIBYTE), "/metrics"),
    "metrics that take long to read": _answering(head() + SLOW, path="/metrics"),
    "numbers beyond all": _answering(head() + LIES, path="/metrics"),
    "silence": _answering(float(MOST)),
    "an answer nested deep": _answering(answered("[" * 100_000)),
    "an answer nested as deep as it is read": _answering(
        answered('{"choices": [{"text": %s}]}' % ("[" * 900 + "]" * 900))
    ),
    "an error nested deep": _answering(answered('{"error": %s}' % ("[" * 400 + "]" * 400), ERROR)),
    "a number of many digits": _answering(answered(b'{"choices": [], "usage": {"prompt_tokens": %s}}' % HUGE)),
    "a probability below all": _answering(
        answered(b'{"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-%s]}}]}' % HUGE[:400])
    ),
    "models of any kind": _answering(
        answered({"data": [{"id": "a", "owned_by": {}}, 1, {"id": "b"}]}), path="/v1/models"
    ),
    "a model that is half a character": _instead(speaking("\ud800"), "/v1/models"),
    "a model whose name has no end": _answering(answered({"data": [{"id": "x" * MEBIBYTE}]}), path="/v1/models"),
    "models without end": _answering(
        answered({"data": [{"id": f"m{n}{SECRET}"} for n in range(9_999)]}), path="/v1/models"
    ),
    "tokens of any kind": _answering(answered({"tokens": [-1, 1e300, True, SECRET]}), path="/tokenize"),
    "a token for each letter of an endless text": _answering(answered({"choices": [{"text": "x" * 9 * MEBIBYTE}]})),
    "an answer that is compressed": _answering(head(more=b"Content-Encoding: gzip\r\n") + b"\x1f\x8b"),
    "a length that is a lie": _answering(head(more=b"Content-Length: 99999\r\n") + b"{}"),
    "two lengths": _answering(head(more=b"Content-Length: 1\r\nContent-Length: 2\r\n") + b"{}"),
    "cookies": _answering(head(more=f"Set-Cookie: a={SECRET}; Domain=.x; Expires={'1 ' * 9_000}\r\n".encode()) + b"{}"),
    "no HTTP": _answering(SECRET.encode() + b"\x1b[2J\r\n\r\n"),
    "nothing": _answering(b""),
}
"""Ways not to answer. All must end within the time that a command was given, and a little more."""
