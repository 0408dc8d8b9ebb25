"""What a server of OpenAI's protocol says: metrics, streams, answers; and the address where it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from random import Random
from typing import Any

from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.target import Target, expect
from serving import (
    Answer,
    Metrics,
    Sample,
    ServerAddress,
    ServerFault,
    Speculation,
    engines,
    parse_metrics,
    speculation,
)
from serving.engines import of_metrics, of_models
from serving.reading import Garbled, answer_of, echoed_of, ids_of, joined, pieces_of, value_of
from serving.sse import EventReader
from serving.wire import STREAM_END, reason

SECRET = "secret-key-1"
SCHEMES = ("http", "https")
BYTE_BY_BYTE = 200
"""Bytes of a stream that is fed in pieces of one and two and three; of a longer one they would take too long."""

PAGE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1.5e+1
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 6 1700000000
sglang:spec_accept_length{model_name="m"} 2.5
sglang:spec_accept_rate 0.5
a{b="\\\\ \\" \\n }"} NaN
"""
CHOICE = {"index": 0, "text": "a", "finish_reason": None, "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5]}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
CONTENT = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}]}
DELTA = {"choices": [{"delta": {"role": "assistant", "reasoning": "x", "content": "a"}, "logprobs": CONTENT}]}
MESSAGE = {"message": {"content": "a", "reasoning_content": "x"}, "finish_reason": "stop", "logprobs": CONTENT}
DOCUMENTS: tuple[Any, ...] = (
    {"choices": [{**CHOICE, "prompt_token_ids": [1, 2], "token_ids": [3]}], "usage": USAGE},
    {"choices": [MESSAGE], "usage": USAGE, "prompt_token_ids": [1]},
    {"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1e3]}}]},
    {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]},
    {"tokens": [1, 2, 3], "count": 3, "max_model_len": 8},
    {"error": {"message": f"no {SECRET}", "code": 400}},
    {"detail": [{"loc": ["body", "stream_options"], "msg": "x"}]},
)


def metrics(data: bytes) -> None:
    """Two readings of an engine's metrics: each sample is read again as it is written, and what is made of them are
    numbers that a report can hold."""
    texts = [page.decode("utf-8", "replace") for page in data.split(b"\0", 1)]
    before, after = parse_metrics(texts[0]), parse_metrics(texts[-1])
    for sample in after.samples[:20]:
        again = parse_metrics(_written(sample)).samples
        expect(len(again) == 1 and _same(again[0], sample), f"{sample} is read again as {again}")
    of_metrics(texts[0])
    for engine in engines().values():
        for model in (None, "m"):
            for old in (before, Metrics(())):
                _numbers(speculation(engine, old, after, model))


def _written(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {sample.value!r}"


def _escaped(value: str) -> str:
    """As the format has it; what stands behind a backslash that escapes nothing is left as it is."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _same(one: Sample, other: Sample) -> bool:
    values = one.value == other.value or (math.isnan(one.value) and math.isnan(other.value))
    return one.name == other.name and one.labels == other.labels and values


def _numbers(found: Speculation | None) -> None:
    if found is None:
        return
    counts = (found.drafts, found.drafted, found.accepted)
    for value in (found.acceptance, found.length, *found.by_position, *counts):
        expect(value is None or (math.isfinite(value) and value >= 0), f"{value} is told")


def stream(data: bytes) -> None:
    """Events are the same however they arrive, those that the standard says; and an answer or Garbled."""
    random, raw = Random(data[:2]), data[2:]
    events = EventReader().feed(raw)
    expect(events == list(_by_the_standard(raw)), "other events than the standard says")
    for most in (1, 3) if len(raw) < BYTE_BY_BYTE else (40, 400):
        reader, cut, at = EventReader(), list[bytes](), 0
        while at < len(raw):
            size = random.randint(1, most)
            cut += reader.feed(raw[at : at + size])
            at += size
        expect(cut == events, "other events when they come in pieces")
    _read(events)


def _by_the_standard(raw: bytes) -> Iterator[bytes]:
    """The events of a whole stream, by the rules of the HTML standard (9.2.6), read at once."""
    lines = re.split(rb"\r\n|\n|\r", raw.removeprefix(b"\xef\xbb\xbf"))[:-1]
    data: list[bytes] = []
    for line in lines:
        name, _, value = line.partition(b":")
        if line and name == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _read(events: list[bytes]) -> None:
    documents = []
    for event in events:
        if event.strip() == STREAM_END:
            break
        value = _or_none(value_of, event)
        if isinstance(value, dict) and "choices" not in value and reason(value):
            break
        documents.append(value)
    answer = _or_none(joined, documents)
    if answer is not None:
        _plain(answer)
        for running in (False, True):
            pieces = pieces_of(list(enumerate(documents)), running=running)
            counts = [piece.counted for piece in pieces if piece.counted is not None]
            expect(counts == sorted(set(counts)), "counts that do not grow")


def answer(data: bytes) -> None:
    """A document, as each of those that a server sends: read, or Garbled in words without the key."""
    document = _or_none(value_of, data)
    for read in (answer_of, echoed_of, ids_of):
        found = _or_none(read, document)
        if isinstance(found, Answer):
            _plain(found)
    expect(isinstance(reason(document), str), "a reason that is no text")
    listed = document.get("data") if isinstance(document, dict) else None
    of_models(listed if isinstance(listed, list) else [document])


def _or_none(read: Callable[[Any], Any], value: Any) -> Any:
    """What `read` makes of it; None where it is refused by the one error that it may raise."""
    try:
        return read(value)
    except Garbled as error:
        told = error.told(SECRET)
        expect(told.isprintable() and len(told) < 10_000, "words that are not printable, or without end")
        expect(SECRET not in told, "the key is told")
    except ValueError:
        expect(read is value_of, f"{read} raises ValueError itself")
    return None


def _plain(found: Answer) -> None:
    """Values that a report can hold: JSON without NaN but for a probability of nothing, counts from 0 on."""
    for token in found.tokens or ():
        expect(token.logprob <= 1e-3, f"a log-probability of {token.logprob}")
    for ids in (found.prompt_ids, found.ids):
        expect(all(type(one) is int and 0 <= one < 2**31 for one in ids or ()), f"ids {ids}")
    json.dumps([found.text, found.finish, found.reasoning, found.prompt_ids, found.ids], allow_nan=False)


def address(data: bytes) -> None:
    """An address is where httpx would go, by the same host, and no password is shown of one that is refused."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = ServerAddress.parse(text)
    except ServerFault as refusal:
        expect(str(refusal).isprintable(), "a refusal that is not printable")
        expect(SECRET not in str(refusal) or SECRET not in text.rpartition("@")[0], "a password is shown")
        return
    expect(found.root.isprintable() and found.root.isascii() and "@" not in found.root, f"{found.root!r} is taken")
    expect(found.api == f"{found.root}/v1", f"{found.api!r} is no path of {found.root!r}")
    if find_spec("httpx") is not None:
        _goes_there(found)


def _goes_there(found: ServerAddress) -> None:
    from urllib.parse import urlsplit

    import httpx

    try:
        url = httpx.URL(found.api)
    except httpx.InvalidURL:
        return
    parts = urlsplit(found.api)
    expect(url.scheme in SCHEMES and not url.query and not url.fragment, f"{found.api!r} has more than a path")
    expect(url.raw_host.decode().lower() == parts.hostname, f"{url.raw_host!r} is not {parts.hostname!r}")
    expect(url.path.endswith("/v1"), f"{url.path!r} is another path")


def metrics_seeds() -> Iterator[bytes]:
    yield PAGE.encode()
    yield PAGE.encode() + b"\0" + PAGE.replace("0.0", "9.0").encode()


def stream_seeds() -> Iterator[bytes]:
    events = [{"choices": [CHOICE], "usage": USAGE}, DELTA, {"choices": [], "usage": USAGE}]
    yield b"aa" + b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"
    yield b"bb\xef\xbb\xbf: x\r\n\r\ndata: {\r\ndata:}\r\rid: 1\nevent: error\nretry: 3\ndata\n\n"


def answer_seeds() -> Iterator[bytes]:
    yield from (json.dumps(document).encode() for document in DOCUMENTS)


def address_seeds() -> Iterator[bytes]:
    yield from (b"http://127.0.0.1:8000", b"https://host.example/v1/", b"http://[::1]:8000/a/v1", b"http://LOCALHOST")
    yield from (
        f"http://user:{SECRET}@host".encode(),
        b"http://host/?a=b#c",
        b"http://host:port",
        b"http://xn--a.example/%2e%2e",
    )


def mutate_page(data: bytes, random: Random) -> bytes:
    """A line of a page said again, with another number, another label, or another piece in it."""
    lines = data.split(b"\n")
    number = random.randrange(len(lines))
    place = random.randrange(len(lines[number]) + 1)
    match random.randrange(4):
        case 0:
            lines[number] = lines[number][:place] + random.choice(PIECES) + lines[number][place:]
        case 1:
            lines[number] = re.sub(rb"\S+$", lambda _: random.choice(NUMBERS), lines[number])
        case 2:
            lines[number] = re.sub(rb'"[^"]*"', lambda _: b'"' + random.choice(NUMBERS) + b'"', lines[number], count=1)
        case _:
            lines.insert(number, lines[random.randrange(len(lines))])
    return b"\n".join(lines)


def mutate_stream(data: bytes, random: Random) -> bytes:
    """An event of a stream with other values, or other ends of lines."""
    lines = re.split(rb"(\r\n|\n|\r)", data[2:])
    number = random.randrange(len(lines))
    if lines[number].startswith(b"data: {") and random.random() < 0.8:
        lines[number] = b"data: " + mutate_json(lines[number][6:], random)
    else:
        lines.insert(number, random.choice(ENDS))
    return random.randbytes(2) + b"".join(lines)


NUMBERS = (
    b"0", b"1", b"-1", b"1e308", b"-1e308", b"1.7e308", b"9007199254740993", b"NaN", b"+Inf", b"-Inf", b"1_0", b"0x1",
    b"9" * 4301, "\u0661".encode(), b"1e-320", b"007",
)  # fmt: skip
PIECES = (b"{", b"}", b'"', b"\\", b",", b"=", b" ", b"\t", b"#", b"\r", b"}}}}}}}}", b'{a="b"', b"\0", b"\xff", b"m")
ENDS = (b"\r", b"\n", b"\r\n", b"data:", b"data", b": x", b"data: [DONE]\n\n", b"\xef\xbb\xbf", b"\xff", b" ")
PAGE_WORDS = ("position=", 'model_name="m"', "vllm:", "sglang:", "_total", "\\n", "NaN", "1e308")
STREAM_WORDS = ("data: ", "[DONE]", "\\r\\n", '"choices":[', '"delta":', '"usage":', '"logprobs":', "-Infinity")
ANSWER_WORDS = ("choices", "message", "logprobs", "token_logprobs", "usage", "-Infinity", "1e400", "owned_by", SECRET)
ADDRESS_WORDS = (
    "http://",
    "https://",
    "/v1",
    "@",
    "\\\\",
    "[",
    "]",
    ":0",
    "%40",
    "%2f",
    "?",
    "#",
    "xn--",
    "\u2100",
    f":{SECRET}@",
)

TARGETS = (
    Target("metrics", "a server's metrics", metrics, metrics_seeds, mutate_page, PAGE_WORDS, longest=12_000),
    Target("stream", "server-sent events, and the answer in them", stream, stream_seeds, mutate_stream, STREAM_WORDS),
    Target("answer", "a server's answers, log-probabilities, models", answer, answer_seeds, mutate_json, ANSWER_WORDS),
    Target("server", "a server's address", address, address_seeds, None, ADDRESS_WORDS, longest=512),
)
