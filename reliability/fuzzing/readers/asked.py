"""What models are asked and once answered: the prompts and the references of `ckpt fidelity`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from checkpoint import Refused
from ckpt.fidelity_words import show
from fidelity import PromptSet, Result, document, read_prompts, read_references
from fidelity.probes import passes
from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.readers.records import mutate_lines
from reliability.fuzzing.target import Target, expect, place

TEXTS = ("", "x", "```python\nx\n```\n", '{"a": 1}', "- a\n- b\n", "der und die")

PROMPTS: tuple[dict[str, Any], ...] = (
    {"id": "a", "prompt": "Say x."},
    {"id": "b", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "long": True},
    {"id": "c", "prompt": "A list", "format": {"probe": "items", "count": 2}},
    {"id": "d", "prompt": "JSON", "format": {"probe": "json", "keys": ["a"]}},
    {"id": "e", "prompt": "German", "format": {"probe": "language", "language": "de"}},
    {"id": "f", "prompt": "Code", "format": {"probe": "code_fence", "language": "python"}},
)
HEAD = {
    "kind": "ckpt fidelity references",
    "version": 1,
    "model": "m",
    "engine": "vLLM 0.24.0",
    "dtype": None,
    "layout": {"by": "server", "sha256": None, "arguments": {"enable_thinking": False}},
    "sampling": {"temperature": 0, "max_tokens": 4},
    "unscored": None,
}
REPLY = {"text": "x y", "finish": "stop", "prompt_ids": [1, 2], "ids": [3], "nll": [0.5]}


def prompts(data: bytes) -> None:
    """A file of prompts: each is one that can be asked and judged, or the file is refused, each problem in a line."""
    path = place() / "asked.jsonl"
    path.write_bytes(data)
    try:
        found = read_prompts(path)
    except Refused as refusal:
        _printable(refusal)
        return
    names = [prompt.id for prompt in found.prompts]
    expect(len(set(names)) == len(names) > 0, "two prompts of one name, or none")
    for prompt in found.prompts:
        json.dumps(prompt.turns, ensure_ascii=False).encode()
        expect((prompt.text is None or bool(prompt.text.strip())) and len(prompt.turns) > 0, "nothing is asked")
        for text in TEXTS if prompt.format else ():
            passes(text, prompt.format or {})


def references(data: bytes) -> None:
    """A file of answers to known prompts: what is read can be measured, shown and written as a document."""
    path = place() / "references.jsonl"
    path.write_bytes(data)
    asked = _asked()
    try:
        found = read_references(path, asked)
    except Refused as refusal:
        _printable(refusal)
        return
    expect([reply.id for reply in found.replies] == [prompt.id for prompt in asked.prompts], "others are answered")
    expect(type(found.max_tokens) is int and found.max_tokens > 0, f"at most {found.max_tokens!r} tokens")
    for reply in found.replies:
        expect(all(type(one) is int and one >= 0 for one in (*(reply.ids or ()), *(reply.prompt_ids or ()))), "no ids")
    result = Result(asked, found, ())
    json.dumps(document(result), allow_nan=False)
    expect(all(isinstance(line, str) for line in show(result)), "a line that is none")


def _printable(refusal: Refused) -> None:
    told = [str(problem) for problem in refusal.problems]
    expect(bool(told) and all(line.isprintable() for line in told), "a refusal that is not printable")


@cache
def _asked() -> PromptSet:
    path = place() / "known.jsonl"
    path.write_bytes(next(prompt_seeds()))
    return read_prompts(path)


def prompt_seeds() -> Iterator[bytes]:
    yield _lines(PROMPTS)
    yield Path(__file__).parents[3].joinpath("fidelity", "prompts.jsonl").read_bytes()[:1200].rpartition(b"\n")[0]


def reference_seeds() -> Iterator[bytes]:
    asked = _asked()
    told = {"name": asked.name, "count": len(asked.prompts), "sha256": asked.sha256}
    yield _lines(({**HEAD, "prompts": told}, *({"id": prompt.id, **REPLY} for prompt in asked.prompts)))


def _lines(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def mutate(data: bytes, random: Random) -> bytes:
    """A line with other values; now and then a line lost, or said twice."""
    return mutate_lines(data, random) if random.random() < 0.95 else mutate_json(data, random)


WORDS = ("id", "prompt", "messages", "role", "format", "probe", "count", "items", "language", "long", "1e300")
REPLY_WORDS = ("kind", "prompt_ids", "ids", "nll", "finish", "layout", "arguments", "sampling", "max_tokens", "1e300")

TARGETS = (
    Target("prompts", "prompts of ckpt fidelity", prompts, prompt_seeds, mutate, WORDS, longest=1500),
    Target("references", "references of ckpt fidelity", references, reference_seeds, mutate, REPLY_WORDS),
)
