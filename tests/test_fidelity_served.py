"""Models behind servers: what a server can do is used, what it cannot is named, and both ways give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_chat import build_chat, serving_chat

from checkpoint import Refused
from fidelity import (
    MEASURES,
    Address,
    PromptSet,
    References,
    Result,
    Settings,
    Unscored,
    ask_base,
    ask_candidate,
    in_process,
    served,
    shipped_prompts,
)
from serving import ServerFault

pytest.importorskip("httpx")

TOKENS = 8
ALONE = Settings(threads=1)
SHIPPED = shipped_prompts()
ASKED = PromptSet(SHIPPED.name, SHIPPED.sha256, SHIPPED.prompts[:6])


def silent(title: str) -> Any:
    return lambda count: None


def at(url: str, **options: Any) -> Any:
    return lambda: served(Address(url, **options))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat(tmp_path_factory.mktemp("chat") / "chat")


@pytest.fixture(scope="module")
def here(chat: Path) -> References:
    """The answers of the same model in process."""
    return ask_base(lambda: in_process(chat, ALONE), ASKED.prompts, TOKENS, silent)


@pytest.fixture(scope="module")
def capable(chat: Path) -> Iterator[str]:
    """A server that shows tokens and log-probabilities, as vLLM does."""
    with serving_chat(chat) as url:
        yield url


@pytest.fixture(scope="module")
def silent_on_tokens(chat: Path) -> Iterator[str]:
    with serving_chat(chat, shows_tokens=False) as url:
        yield url


def test_a_server_and_a_process_give_the_same_answers_tokens_and_nll(capable: str, here: References) -> None:
    found = ask_base(at(capable), ASKED.prompts, TOKENS, silent)
    assert found.unscored is None
    for one, other in zip(found.replies, here.replies, strict=True):
        assert (one.id, one.text, one.finish) == (other.id, other.text, other.finish)
        assert (one.prompt_ids, one.ids) == (other.prompt_ids, other.ids)
        assert one.nll == pytest.approx(other.nll, abs=1e-4)
    assert found.source.layout.by == "server"
    assert found.source.engine == "vLLM"


def test_requests_at_a_time_change_nothing(capable: str) -> None:
    one = ask_base(at(capable), ASKED.prompts, TOKENS, silent)
    assert ask_base(at(capable, parallel=4), ASKED.prompts, TOKENS, silent) == one


def test_arguments_reach_the_servers_template(capable: str, chat: Path, here: References) -> None:
    asked = ask_base(at(capable, arguments={"tone": "kind"}), ASKED.prompts, TOKENS, silent)
    settings = Settings(threads=1, arguments={"tone": "kind"})
    alike = ask_base(lambda: in_process(chat, settings), ASKED.prompts, TOKENS, silent)
    assert [one.text for one in asked.replies] == [one.text for one in alike.replies]
    assert [one.text for one in asked.replies] != [one.text for one in here.replies]
    assert [one.prompt_ids for one in asked.replies] == [one.prompt_ids for one in alike.replies]
    assert asked.source.layout.arguments == {"tone": "kind"}


def test_a_server_that_shows_no_tokens_needs_a_tokenizer_for_nll(silent_on_tokens: str, here: References) -> None:
    shown = tuple(replace(reply, prompt_ids=None, ids=None, nll=None) for reply in here.replies)
    references = References(here.source, TOKENS, shown)
    candidate = ask_candidate("served", at(silent_on_tokens), references, ASKED.prompts, silent)
    assert candidate.nll is None
    assert candidate.unscored is not None
    assert "give --tokenizer DIR" in candidate.unscored
    assert [reply.text for reply in candidate.replies] == [reply.text for reply in here.replies]


def test_with_a_tokenizer_prompts_are_sent_as_tokens(silent_on_tokens: str, chat: Path, here: References) -> None:
    candidate = ask_candidate("served", at(silent_on_tokens, tokenizer=chat), here, ASKED.prompts, silent)
    assert candidate.source.layout.by == "tokenizer"
    assert [reply.text for reply in candidate.replies] == [reply.text for reply in here.replies]
    assert candidate.nll is not None
    for nll, reply in zip(candidate.nll, here.replies, strict=True):
        assert nll == pytest.approx(reply.nll, abs=1e-4)


def test_raw_texts_are_judged_by_the_echo_of_the_text(silent_on_tokens: str, chat: Path) -> None:
    settings = Settings(threads=1, raw=True)
    alike = ask_base(lambda: in_process(chat, settings), ASKED.prompts, TOKENS, silent)
    found = ask_base(at(silent_on_tokens, raw=True), ASKED.prompts, TOKENS, silent)
    assert [one.text for one in found.replies] == [one.text for one in alike.replies]
    for one, other in zip(found.replies, alike.replies, strict=True):
        assert one.nll == pytest.approx(other.nll, abs=1e-4)


def test_a_server_without_log_probabilities_is_measured_in_all_but_nll(chat: Path, here: References) -> None:
    with serving_chat(chat, scores=False) as url:
        candidate = ask_candidate("served", at(url), here, ASKED.prompts, silent)
    assert candidate.nll is None
    assert candidate.unscored is not None
    assert "gives no log-probabilities of a given text" in candidate.unscored
    result = Result(ASKED, here, (candidate,))
    assert {one.measure.name for one in result.differences} == {"empty", "loop", "truncated"}
    sums = {measure.name: result.columns[1].summary(measure) for measure in MEASURES}
    assert (sums["nll"], sums["exact"], sums["first_sentence"]) == ((None, 0), (1.0, 6), (1.0, 6))


def test_nll_may_come_from_a_folder_in_its_place(chat: Path, here: References) -> None:
    with serving_chat(chat, scores=False) as url:
        scorer = lambda: in_process(chat, ALONE)  # noqa: E731
        candidate = ask_candidate("served", at(url), here, ASKED.prompts, silent, scorer=scorer)
        base = ask_base(at(url), ASKED.prompts, TOKENS, silent, scorer=scorer)
    assert candidate.nll == tuple(reply.nll for reply in here.replies)
    assert [reply.nll for reply in base.replies] == [reply.nll for reply in here.replies]
    assert candidate.source.engine == "vLLM"


def test_a_server_that_sets_reasoning_apart_is_refused_with_what_turns_it_off(chat: Path) -> None:
    with serving_chat(chat, thinks=True) as url, pytest.raises(Refused, match="enable_thinking"):
        ask_base(at(url), ASKED.prompts, TOKENS, silent)


def test_a_server_that_is_not_there_is_an_error(chat: Path) -> None:
    with serving_chat(chat) as url:
        pass
    with pytest.raises(ServerFault, match="Is the server running"):
        ask_base(at(url), ASKED.prompts, TOKENS, silent)


def test_transformers_own_server_answers_as_transformers_in_process(
    transformers_server: str, chat: Path, here: References
) -> None:
    """It shows no tokens and no log-probabilities of a given text."""
    candidate = ask_candidate("served", at(transformers_server, model=str(chat)), here, ASKED.prompts, silent)
    assert [reply.text for reply in candidate.replies] == [reply.text for reply in here.replies]
    assert [reply.finish for reply in candidate.replies] == [reply.finish for reply in here.replies]
    assert candidate.nll is None
    assert "gives no log-probabilities" in str(candidate.unscored)


def test_a_real_vllm_gives_a_real_model_the_nll_that_transformers_does(vllm_server: str, smollm2_base: Path) -> None:
    asked = ASKED.prompts[:3]
    served_by = ask_base(at(vllm_server), asked, TOKENS, silent)
    alike = ask_base(lambda: in_process(smollm2_base, ALONE), asked, TOKENS, silent)
    for one, other in zip(served_by.replies, alike.replies, strict=True):
        assert (one.text, one.prompt_ids, one.ids) == (other.text, other.prompt_ids, other.ids)
        assert one.nll == pytest.approx(other.nll, abs=1e-3)


def test_a_server_that_cannot_score_raises_unscored(chat: Path, here: References) -> None:
    with serving_chat(chat, scores=False) as url, served(Address(url)) as model, pytest.raises(Unscored):
        model.score(ASKED.prompts, here.replies, lambda count: None)
