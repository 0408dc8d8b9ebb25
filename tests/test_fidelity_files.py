"""Prompts and references as files: what is read, what is refused and with which words, what comes back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint import Refused
from fidelity import Layout, PromptSet, References, Reply, Source, read_prompts, read_references, write_references
from schemas import validate

HELLO = {"id": "hello", "prompt": "Hello?"}
TALK = {"id": "talk", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
LIST = {"id": "list", "prompt": "Three fruits.", "format": {"probe": "items", "count": 3}, "long": True}
SOURCE = Source("SmolLM2", "transformers 5.17.0", Layout("tokenizer", "0" * 64, {"tone": "kind"}), "float32")
REPLIES = (
    Reply("hello", "Hi \u2028there", "stop", (1, 2), (3, 4), (0.5, 0.25)),
    Reply("talk", "", "length"),
    Reply("list", "- a", None, (9,), (), ()),
)


def lines(folder: Path, *records: Any, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def asked(tmp_path: Path) -> PromptSet:
    return read_prompts(lines(tmp_path, HELLO, TALK, LIST))


def words(refusal: pytest.ExceptionInfo[Refused]) -> str:
    return "\n".join(map(str, refusal.value.problems))


def test_prompts_are_texts_or_conversations_in_the_order_of_their_lines(asked: PromptSet) -> None:
    hello, talk, listing = asked.prompts
    assert (hello.text, hello.turns) == ("Hello?", ({"role": "user", "content": "Hello?"},))
    assert (talk.text, talk.turns) == (None, tuple(TALK["messages"]))
    assert (listing.format, listing.long) == ({"probe": "items", "count": 3}, True)
    assert (hello.format, hello.long) == (None, False)


def test_the_hash_is_of_what_the_prompts_say_not_of_how_the_file_is_laid_out(tmp_path: Path) -> None:
    expected = hashlib.sha256(b'[{"id": "hello", "prompt": "Hello?"}]').hexdigest()
    assert read_prompts(lines(tmp_path, HELLO)).sha256 == expected
    assert read_prompts(lines(tmp_path, "", '{"prompt":"Hello?",   "id": "hello"}', "")).sha256 == expected
    assert read_prompts(lines(tmp_path, HELLO | {"prompt": "Hello!"})).sha256 != expected


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"id": "a"}, "line 2"),
        ({"prompt": "a"}, "'id' is a required property"),
        ({"id": "a", "prompt": "b", "messages": TALK["messages"]}, "line 2"),
        ({"id": "a", "prompt": " "}, "prompt"),
        ({"id": "a", "prompt": "b", "formt": {}}, "formt"),
        ({"id": "a", "prompt": "b", "format": {"probe": "rhyme"}}, "'rhyme' is not one of"),
        ({"id": "a", "prompt": "b", "format": {"probe": "items"}}, "'count' is a required property"),
        ({"id": "a", "prompt": "b", "format": {"probe": "language", "language": "tlh"}}, "'tlh' is not one of"),
        ({"id": "a", "messages": [{"role": "tool", "content": "b"}]}, "'tool' is not one of"),
        (HELLO, "id 'hello' again, as on line 1"),
        ("{", "line 2"),
        ('{"id": "a", "id": "b", "prompt": "c"}', "line 2"),
        ("[]", "line 2"),
        ('{"id": "a", "prompt": "\\ud800"}', "line 2"),
    ],
)
def test_a_faulty_line_of_prompts_is_refused_by_its_number(tmp_path: Path, record: Any, said: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_prompts(lines(tmp_path, HELLO, record))
    assert "prompts.jsonl, line 2" in words(refusal)
    assert said in words(refusal)


def test_all_faulty_lines_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refusal:
        read_prompts(lines(tmp_path, {"id": "a"}, HELLO, "no JSON"))
    assert {"prompts.jsonl, line 1", "prompts.jsonl, line 3"} == {problem.file for problem in refusal.value.problems}


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "none.jsonl").write_bytes(content)
    with pytest.raises(Refused, match="holds no line"):
        read_prompts(tmp_path / "none.jsonl")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        read_prompts(tmp_path / "none.jsonl")


@pytest.mark.parametrize("unscored", [None, "the server gives none"])
def test_references_come_back_as_they_were_written(tmp_path: Path, asked: PromptSet, unscored: str | None) -> None:
    written = References(SOURCE, 64, REPLIES, unscored)
    write_references(written, asked, tmp_path / "base.jsonl")
    assert read_references(tmp_path / "base.jsonl", asked) == written


def test_every_line_of_references_satisfies_the_schema(tmp_path: Path, asked: PromptSet) -> None:
    write_references(References(SOURCE, 64, REPLIES), asked, tmp_path / "base.jsonl")
    records = [json.loads(line) for line in (tmp_path / "base.jsonl").read_text().split("\n")[:-1]]
    assert [validate(record, "fidelity_reference") for record in records] == [[]] * 4
    head = records[0]
    assert (head["model"], head["engine"]) == ("SmolLM2", "transformers 5.17.0")
    assert head["prompts"] == {"name": "prompts.jsonl", "count": 3, "sha256": asked.sha256}
    assert head["sampling"] == {"temperature": 0, "max_tokens": 64}
    assert head["layout"] == {"by": "tokenizer", "sha256": "0" * 64, "arguments": {"tone": "kind"}}


def test_references_may_stand_in_another_order_than_the_prompts(tmp_path: Path, asked: PromptSet) -> None:
    write_references(References(SOURCE, 64, REPLIES), asked, tmp_path / "base.jsonl")
    head, *rest = (tmp_path / "base.jsonl").read_text().split("\n")[:-1]
    shuffled = lines(tmp_path, head, *reversed(rest), name="shuffled.jsonl")
    assert read_references(shuffled, asked).replies == REPLIES


def test_references_are_not_written_over(tmp_path: Path, asked: PromptSet) -> None:
    path = lines(tmp_path, "something", name="base.jsonl")
    with pytest.raises(Refused, match="is there already"):
        write_references(References(SOURCE, 64, REPLIES), asked, path)
    assert path.read_text() == "something\n"


def test_answers_to_other_prompts_are_refused(tmp_path: Path, asked: PromptSet) -> None:
    write_references(References(SOURCE, 64, REPLIES), asked, tmp_path / "base.jsonl")
    other = read_prompts(lines(tmp_path, HELLO, TALK, LIST | {"prompt": "Four fruits."}, name="other.jsonl"))
    with pytest.raises(Refused, match=r"answers to 3 other prompts \(prompts.jsonl, sha256 [0-9a-f]{12}\)"):
        read_references(tmp_path / "base.jsonl", other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found[1:], "an answer; expected the head"),
        (lambda found: [found[0], *found], "a second head"),
        (lambda found: found[:-1], "no answer to 'list'"),
        (lambda found: [*found, found[-1]], "id 'list' again"),
        (lambda found: [*found, found[-1] | {"id": "odd"}], "no such prompt: 'odd'"),
        (lambda found: [*found[:-1], {**found[-1], "nll": ["x"]}], "'x' is not of type 'number'"),
        (lambda found: [*found[:-1], {**found[-1], "nll": [1e300]}], "1e+300 is greater than the maximum"),
        (lambda found: [{**found[0], "version": 2}, *found[1:]], "2 is not 1"),
    ],
)
def test_faulty_references_are_refused(tmp_path: Path, asked: PromptSet, change: Any, said: str) -> None:
    write_references(References(SOURCE, 64, REPLIES), asked, tmp_path / "base.jsonl")
    found = [json.loads(line) for line in (tmp_path / "base.jsonl").read_text().split("\n")[:-1]]
    with pytest.raises(Refused) as refusal:
        read_references(lines(tmp_path, *change(found), name="faulty.jsonl"), asked)
    assert said in words(refusal)
