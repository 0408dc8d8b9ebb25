"""The client against a real server on loopback: `transformers serve`, with SmolLM2 in BF16 and at INT4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Ask, Declined, Server, ServerFault, why_not_scoring

pytest.importorskip("httpx")

CAPITAL = "The capital of France is"
COLOUR = ({"role": "user", "content": "Name a colour."},)


@pytest.fixture(scope="module")
def base(transformers_server: str, smollm2_base: Path) -> Iterator[Server]:
    with Server(transformers_server, str(smollm2_base)) as server:
        yield server


@pytest.fixture(scope="module")
def int4(transformers_server: str, smollm2_int4: Path) -> Iterator[Server]:
    with Server(transformers_server, str(smollm2_int4)) as server:
        yield server


def test_a_text_is_continued_and_its_tokens_are_counted_as_the_tokenizer_counts(base: Server) -> None:
    from tokenizers import Tokenizer

    answer = base.answer(Ask(CAPITAL, max_tokens=2))
    assert answer.text == " Paris."
    assert answer.truncated
    assert answer.usage is not None
    tokenizer = Tokenizer.from_file(f"{base.model}/tokenizer.json")
    assert answer.usage.prompt == len(tokenizer.encode(CAPITAL).ids)
    assert answer.usage.completion == len(tokenizer.encode(" Paris.").ids) == 2


def test_an_int4_checkpoint_that_this_project_wrote_is_served_and_knows_it_too(int4: Server) -> None:
    assert "Paris" in int4.answer(Ask(CAPITAL, max_tokens=3)).text


def test_a_stream_brings_the_answer_token_by_token(base: Server) -> None:
    whole = base.answer(Ask(COLOUR, max_tokens=5))
    stream = base.stream(Ask(COLOUR, max_tokens=5, ignore_eos=True))
    assert stream.answer.text == whole.text == "".join(piece.text for piece in stream.pieces)
    assert stream.answer.usage == whole.usage
    assert (stream.tokens, stream.by_usage) == (5, True)
    times = [stream.sent, *(piece.at for piece in stream.pieces), stream.ended]
    assert times == sorted(times)
    assert 2 <= len(stream.pieces) <= 5


def test_what_this_server_does_not_do_is_known_though_it_does_not_say_so(base: Server) -> None:
    assert base.models == ()
    assert (base.engine.name, base.version, base.metrics()) == ("other", None, None)
    assert base.answer(Ask("A", max_tokens=1, logprobs=True)).tokens is None
    why = why_not_scoring(base)
    assert why is not None
    assert "no log-probabilities of a given text" in why


def test_without_a_model_of_its_own_the_server_is_asked_for_none(transformers_server: str) -> None:
    with Server(transformers_server) as server, pytest.raises(ServerFault, match=r"lists no model\. Name"):
        server.answer(Ask("A", max_tokens=1))


def test_a_member_that_the_server_does_not_know_is_refused_in_its_words(base: Server) -> None:
    with pytest.raises(Declined, match=r"HTTP 422: Unexpected fields in the request: \{'ignore_eos'\}"):
        base.answer(Ask("A", max_tokens=1, extra={"ignore_eos": True}))
