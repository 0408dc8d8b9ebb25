"""Answers of a base, kept: a JSONL whose first line says how they came about, the others one answer each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import Problem, Refused
from checkpoint.errors import bounded
from checkpoint.wholefile import write_whole
from fidelity.jsonl import read_lines, repeated
from fidelity.prompts import Prompt, PromptSet
from fidelity.replies import Ids, Layout, Reply, Source

KIND = "ckpt fidelity references"
VERSION = 1
CODE = "references"


@dataclass(frozen=True)
class References:
    """The base's greedy answers of at most `max_tokens` tokens, one for each prompt, in the prompts' order.

    `unscored`: why the base's own NLL of them is not known; None where it is.
    """

    source: Source
    max_tokens: int
    replies: tuple[Reply, ...]
    unscored: str | None = None


def write_references(references: References, asked: PromptSet, path: Path) -> None:
    """Write them whole or not at all. Refuses a file that is there already; raises WriteFailed."""
    refuse_existing(path)
    source, layout = references.source, references.source.layout
    head: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "model": source.model,
        "engine": source.engine,
        "dtype": source.dtype,
        "layout": {"by": layout.by, "sha256": layout.sha256, "arguments": dict(layout.arguments)},
        "prompts": {"name": asked.name, "count": len(asked.prompts), "sha256": asked.sha256},
        "sampling": {"temperature": 0, "max_tokens": references.max_tokens},
        "unscored": references.unscored,
    }
    lines = [head, *map(_line, references.replies)]
    text = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines)
    write_whole(text.encode(), path, "references-unwritable")


def refuse_existing(path: Path) -> None:
    """Refuse a file that is there: answers are not replaced, since others were compared with them."""
    if path.exists():
        remedy = "Leave out the base to read it, or give another name"
        raise Refused(Problem("references-exist", "is there already", str(path), remedy=remedy))


def read_references(path: Path, asked: PromptSet) -> References:
    """The answers of a file to these prompts. Refuses a file that is faulty, or answers other prompts."""
    (first, head), *rest = read_lines(path, "fidelity_reference", CODE)
    _check(path, first, head, rest, asked)
    layout = Layout(**head["layout"])
    source = Source(head["model"], head["engine"], layout, head["dtype"])
    replies = {record["id"]: _reply(record) for _, record in rest}
    ordered = tuple(replies[prompt.id] for prompt in asked.prompts)
    return References(source, int(head["sampling"]["max_tokens"]), ordered, head["unscored"])


def _check(
    path: Path, first: int, head: dict[str, Any], rest: Sequence[tuple[int, dict[str, Any]]], asked: PromptSet
) -> None:
    if "kind" not in head:
        raise Refused(Problem("references-invalid", "an answer", f"{path.name}, line {first}", expected="the head"))
    prompts = head["prompts"]
    if prompts["sha256"] != asked.sha256:
        found = f"answers to {prompts['count']} other prompts ({prompts['name']}, sha256 {prompts['sha256'][:12]})"
        expected = f"to those of {asked.name}, sha256 {asked.sha256[:12]}"
        raise Refused(Problem("references-other", found, str(path), expected=expected, remedy="Give their --prompts"))
    heads = [number for number, record in rest if "kind" in record]
    problems = [Problem("references-invalid", "a second head", f"{path.name}, line {number}") for number in heads]
    ids = [(number, record["id"]) for number, record in rest if "id" in record]
    problems += repeated(ids, path, CODE)
    problems += _missing({name for _, name in ids}, asked.prompts, path)
    if problems:
        raise Refused(bounded(problems))


def _missing(ids: set[str], prompts: Sequence[Prompt], path: Path) -> list[Problem]:
    wanted = {prompt.id for prompt in prompts}
    absent = [Problem("references-invalid", f"no answer to {name!r}", path.name) for name in sorted(wanted - ids)]
    strange = [Problem("references-invalid", f"no such prompt: {name!r}", path.name) for name in sorted(ids - wanted)]
    return absent + strange


def _line(reply: Reply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "text": reply.text,
        "finish": reply.finish,
        "prompt_ids": reply.prompt_ids,
        "ids": reply.ids,
        "nll": reply.nll,
    }


def _reply(record: dict[str, Any]) -> Reply:
    prompt_ids, ids = _ids(record["prompt_ids"]), _ids(record["ids"])
    nll = None if record["nll"] is None else tuple(map(float, record["nll"]))
    return Reply(record["id"], record["text"], record["finish"], prompt_ids, ids, nll)


def _ids(numbers: list[int] | None) -> Ids | None:
    return None if numbers is None else tuple(map(int, numbers))
