"""Log-probabilities of given text: by a scripted server whose tokens and values are known, and by a real vLLM if asked.

`CKPT_VLLM_CPU=/path/to/vllm` (docs/latency.md says how to install it) runs the last tests too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import Request, Script, ScriptedServer, Step, answered, routed

from serving import Ask, Incapable, Scores, Server, ServerFault, score, why_not_scoring

pytest.importorskip("httpx")

WORDS = re.compile(r" ?\w+|.", re.DOTALL)
"""This server's tokens: a word with the blank before it, or a single character."""

VOCABULARY: list[str] = []


def ids_of(text: str) -> list[int]:
    for token in WORDS.findall(text):
        if token not in VOCABULARY:
            VOCABULARY.append(token)
    return [VOCABULARY.index(token) for token in WORDS.findall(text)]


def logprob(token: str) -> float:
    return -len(token) / 4


def echo(tokens: list[str], *, generated: int) -> dict[str, Any]:
    tokens = [*tokens, *["!"] * generated]
    values = [None, *(logprob(token) for token in tokens[1:])]
    choice = {"text": "".join(tokens), "logprobs": {"tokens": tokens, "token_logprobs": values}}
    return {"choices": [choice], "usage": {"prompt_tokens": len(tokens) - generated, "completion_tokens": generated}}


def scoring(*, least: int = 0, change: Callable[[list[str]], list[str]] = lambda tokens: tokens) -> Script:
    """Echoes; generates at least so many tokens, and refuses to be asked for fewer."""

    def script(request: Request) -> Iterable[Step]:
        body = request.body
        if body["max_tokens"] < least:
            return [answered({"detail": "max_tokens"}, "400 Bad Request")]
        prompt = body["prompt"]
        tokens = WORDS.findall(prompt) if isinstance(prompt, str) else [VOCABULARY[number] for number in prompt]
        if not body.get("echo"):
            return [answered({"choices": [{"text": "!"}]})]
        return [answered(echo(change(tokens), generated=body["max_tokens"]))]

    return script


def tokenizing(request: Request) -> Iterable[Step]:
    body = request.body
    if "messages" in body:
        laid_out = "".join(f"<{one['role']}>{one['content']}" for one in body["messages"])
        return [answered({"tokens": ids_of(laid_out + f"<assistant{body.get('suffix', '')}>")})]
    start = "^" if body["add_special_tokens"] else ""
    return [answered({"tokens": ids_of(start + body["prompt"])})]


def scores(script: Script, prompt: Any, answer: Any, *, ids: bool = False, **extra: Any) -> tuple[Scores, list[Any]]:
    routes = {"/v1/completions": script} | ({"/tokenize": tokenizing} if ids else {})
    with ScriptedServer(routed(routes, "vllm" if ids else "nobody")) as scripted, Server(scripted.url) as server:
        found = score(server, prompt, answer, **extra)
        return found, [request.body["prompt"] for request in scripted.requests("/v1/completions")]


def texts(found: Scores) -> list[str]:
    return [token.text for token in found.tokens]


@pytest.mark.parametrize("least", [0, 1])
def test_the_tokens_of_the_answer_are_scored_and_no_others(least: int) -> None:
    """Tokens " is" and " blue": 3 and 5 characters, so -0.75 and -1.25."""
    found, asked = scores(scoring(least=least), "The sky", " is blue")
    assert texts(found) == [" is", " blue"]
    assert (found.nll, found.mean_nll, found.straddles) == (2.0, 1.0, False)
    assert set(asked) == {"The sky is blue"}


def test_a_token_that_has_the_prompts_end_too_is_scored_and_told() -> None:
    found, _ = scores(scoring(), "The sk", "y is")
    assert texts(found) == [" sky", " is"]
    assert found.straddles


def test_where_the_server_shows_its_tokens_the_answers_are_its_own() -> None:
    found, asked = scores(scoring(), "The sk", "y is", ids=True)
    assert texts(found) == ["y", " is"]
    assert not found.straddles
    assert asked == [ids_of("^The sk") + ids_of("y is")]


def test_messages_are_laid_out_by_the_server() -> None:
    found, asked = scores(scoring(), [{"role": "user", "content": "sky"}], "blue", ids=True, suffix="think")
    assert texts(found) == ["blue"]
    assert asked == [ids_of("<user>sky<assistantthink>blue")]


def test_ids_are_taken_as_they_are() -> None:
    found, asked = scores(scoring(), ids_of("a b"), ids_of(" c"))
    assert texts(found) == [" c"]
    assert asked == [ids_of("a b c")]


def test_messages_without_a_tokenizer_to_ask_are_refused() -> None:
    with pytest.raises(Incapable, match="does not show how it splits text"):
        scores(scoring(), [{"role": "user", "content": "sky"}], "blue")


def test_an_empty_answer_has_no_tokens_and_asks_nothing() -> None:
    found, asked = scores(scoring(), "a", "")
    assert (found.tokens, asked) == ((), [])
    with pytest.raises(ZeroDivisionError):
        _ = found.mean_nll


def test_an_answer_without_anything_before_it_has_a_token_that_cannot_be_scored() -> None:
    with pytest.raises(Incapable, match="no log-probability for a token of the answer"):
        scores(scoring(), "", "one two")


@pytest.mark.parametrize("change", [lambda tokens: [*tokens[:-1], "?"], lambda tokens: tokens[:1] * len(tokens)])
def test_an_echo_of_other_text_is_refused(change: Callable[[list[str]], list[str]]) -> None:
    with pytest.raises(Incapable, match="echoes other text"):
        scores(scoring(change=change), "The sky", " is blue")


def test_an_echo_with_tokens_missing_is_refused() -> None:
    with pytest.raises(Incapable, match="no log-probabilities of a given text"):
        scores(scoring(change=lambda tokens: tokens[1:]), ids_of("a b"), ids_of(" c"))


def test_a_server_that_can_is_told_from_one_that_ignores_the_question_and_one_that_refuses_it() -> None:
    def ignoring(request: Request) -> Iterable[Step]:
        return [answered({"choices": [{"text": "!"}]})]

    def refusing(request: Request) -> Iterable[Step]:
        return [answered({"detail": "echo is not for you"}, "400 Bad Request")]

    said = []
    for script in (scoring(), ignoring, refusing):
        with ScriptedServer(routed({"/v1/completions": script})) as scripted, Server(scripted.url) as server:
            said.append(why_not_scoring(server))
    assert said[0] is None
    assert said[1] is not None
    assert "gives no log-probabilities of a given text. vLLM gives them." in said[1]
    assert said[2] is not None
    assert "echo is not for you" in said[2]


def test_a_server_that_is_down_is_a_fault_not_an_inability() -> None:
    with Server("http://127.0.0.1:9", "m") as server, pytest.raises(ServerFault, match="refused"):
        why_not_scoring(server)


@pytest.fixture(scope="module")
def vllm(vllm_server: str) -> Iterator[Server]:
    with Server(vllm_server) as server:
        yield server


class TestRealVllm:
    def test_scores_are_those_of_the_model_computed_directly(self, vllm: Server, smollm2_base: Path) -> None:
        """log_softmax of transformers' own forward pass in F32."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        prompt, answer = "The capital of France is", " Paris, a city"
        tokenizer = AutoTokenizer.from_pretrained(smollm2_base)
        model = AutoModelForCausalLM.from_pretrained(smollm2_base, dtype=torch.float32)
        before, behind = tokenizer(prompt).input_ids, tokenizer(answer).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([before + behind])).logits[0]
        expected = torch.log_softmax(logits.double(), -1)[torch.arange(len(before) - 1, len(logits) - 1), behind]
        found = score(vllm, prompt, answer)
        assert texts(found) == [tokenizer.decode([number]) for number in behind]
        assert [token.logprob for token in found.tokens] == pytest.approx(expected.tolist(), abs=1e-3)

    def test_generated_tokens_have_the_scores_that_they_get_when_given(self, vllm: Server) -> None:
        answer = vllm.answer(Ask("The capital of France is", max_tokens=4, logprobs=True))
        assert answer.tokens is not None
        assert answer.prompt_ids is not None
        assert answer.ids is not None
        given = score(vllm, answer.prompt_ids, answer.ids)
        assert [token.logprob for token in given.tokens] == pytest.approx(
            [token.logprob for token in answer.tokens], abs=1e-3
        )
        assert all(math.exp(token.logprob) <= 1 for token in given.tokens)

    def test_it_is_recognised_and_counts_as_it_goes(self, vllm: Server) -> None:
        assert vllm.engine.name == "vllm"
        assert vllm.version
        stream = vllm.stream(Ask("One, two,", max_tokens=4, ignore_eos=True))
        assert [piece.counted for piece in stream.pieces] == [1, 2, 3, 4]
        assert why_not_scoring(vllm) is None
        assert vllm.metrics() is not None
