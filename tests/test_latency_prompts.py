"""What servers are asked: prompts of the wanted length, known to a prefix cache or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from scripted import Request, ScriptedServer, Step, answered, routed
from speaking import COMPLETIONS, measured, speaking, streamed, tokens_in

from latency import Candidate, Settings, measure
from serving import Server, ServerFault

pytest.importorskip("httpx")


def asked_of(settings: Settings, count: int = 2) -> list[list[str]]:
    servers: list[ScriptedServer] = []
    measured(settings, *[speaking()] * count, more=servers)
    return [[request.body["prompt"] for request in streamed(one)] for one in servers]


def test_prompts_of_a_cold_prefix_are_all_different_from_their_beginning() -> None:
    settings = Settings(output_tokens=2, rounds=3, warmup=1, streams=(2,))
    prompts = [one for asked in asked_of(settings) + asked_of(settings) for one in asked]
    assert len({one[:14] for one in prompts}) == len(prompts) == 32


def test_prompts_of_a_warm_prefix_are_one_for_all() -> None:
    first, second = asked_of(Settings(output_tokens=2, rounds=2, warmup=1, streams=(2,), prefix="warm"))
    assert len({*first, *second}) == 1
    assert len(first) == len(second) == 6


@pytest.mark.parametrize("wanted", [(128,), (64, 512)])
def test_prompts_have_the_length_that_was_asked_for_as_the_server_counts(wanted: tuple[int, ...]) -> None:
    result = measured(Settings(output_tokens=2, rounds=2, warmup=0, prompt_tokens=wanted), speaking())
    for cell, tokens in zip(result.cells, wanted, strict=True):
        for done in cell.rounds["c0"]:
            assert done.turns[0].prompt_tokens == pytest.approx(tokens, abs=2)


def test_prompts_are_counted_by_the_tokenizer_where_the_server_shows_it() -> None:
    def tokenizing(request: Request) -> Iterable[Step]:
        yield answered({"tokens": [1, 2] * tokens_in(request.body["prompt"])})

    script = routed({COMPLETIONS: speaking(running=True), "/tokenize": tokenizing}, "vllm")
    with ScriptedServer(script) as server:
        measure([Candidate("a", Server(server.url))], Settings(output_tokens=2, rounds=1, warmup=0))
        assert len(server.requests("/tokenize")) == 2
        (asked,) = server.requests(COMPLETIONS)
        assert 2 * tokens_in(asked.body["prompt"]) == pytest.approx(128, abs=4)


def test_prompts_cannot_be_set_where_the_server_counts_nothing() -> None:
    def silent(request: Request) -> Iterable[Step]:
        yield answered({"choices": [{"text": "x"}]})

    with pytest.raises(ServerFault, match="does not count the tokens of a prompt"):
        measured(Settings(), silent)


def test_prompts_are_messages_for_a_chat() -> None:
    def chatting(request: Request) -> Iterator[Step]:
        body = {**request.body, "prompt": request.body["messages"][0]["content"]}
        yield from speaking()(Request("", "", {}, body, 0, 0))

    with ScriptedServer(routed({"/v1/chat/completions": chatting})) as server:
        result = measure([Candidate("a", Server(server.url))], Settings(output_tokens=2, rounds=1, chat=True))
        assert result.cells[0].rounds["a"][0].turns[0].prompt_tokens == pytest.approx(128, abs=2)
        assert not server.requests(COMPLETIONS)
