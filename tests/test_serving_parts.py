"""The parts of the client that need no server: events, documents, metrics, engines, intervals."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import validate
from serving import Metrics, Speculation, engines, parse_metrics, speculation
from serving.engines import FILE, of_metrics, of_models
from serving.reading import Garbled, answer_of, echoed_of, joined, pieces_of
from serving.sse import EventReader

DATA = Path(__file__).parent / "data"


class TestEvents:
    """Expected values are those of the HTML standard's examples and rules, section 9.2.6."""

    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
            (": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
             ["first event", "second event", " third event"]),
            ("data\n\ndata\ndata\n\ndata:", ["", "\n"]),
            ("data:test\n\ndata: test\n\n", ["test", "test"]),
            ("data: a\r\n\r\ndata: b\r\rdata: c\n\n", ["a", "b", "c"]),
            ("event: error\ndata: {}\nretry: 3\n\n", ["{}"]),
            ("\ufeffdata: a\n\n", ["a"]),
            ("data: unfinished\n", []),
            ("datum: a\n\n", []),
        ],
    )  # fmt: skip
    def test_of_the_standard_are_read_however_they_are_cut(self, text: str, data: list[str]) -> None:
        raw = text.encode()
        for size in (1, 2, 3, len(raw)):
            reader = EventReader()
            found = [one for at in range(0, len(raw), size) for one in reader.feed(raw[at : at + size])]
            # a carriage return at the very end waits for what may follow
            assert [one.decode() for one in found] == data

    @given(
        st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=8),
        st.randoms(use_true_random=False),
    )
    def test_come_out_as_they_went_in_cut_anywhere(self, texts: list[str], random: Random) -> None:
        raw = "".join(f"data: {text}\n\n" for text in texts).encode()
        reader, found, at = EventReader(), list[bytes](), 0
        while at < len(raw):
            size = random.randint(1, 7)
            found += reader.feed(raw[at : at + size])
            at += size
        assert [one.decode() for one in found] == texts

    @given(st.lists(st.binary(max_size=40)))
    def test_of_any_bytes_are_no_error(self, chunks: list[bytes]) -> None:
        reader = EventReader()
        for chunk in chunks:
            reader.feed(chunk)


def chat(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


class TestAnswers:
    def test_a_completion_and_a_chat_completion_read_alike(self) -> None:
        assert answer_of({"choices": [{"text": "x", "finish_reason": "length"}]}).truncated
        answer = answer_of(chat(content="x"))
        assert (answer.text, answer.finish, answer.truncated) == ("x", "stop", False)

    @pytest.mark.parametrize("member", ["reasoning", "reasoning_content"])
    def test_what_a_parser_set_apart_is_not_the_text(self, member: str) -> None:
        answer = answer_of(chat(content=None, **{member: "hm"}))
        assert (answer.text, answer.reasoning) == ("", "hm")

    def test_cached_tokens_are_read_where_they_are_said(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 2}
        plain = answer_of(chat(content="") | {"usage": usage}).usage
        told = answer_of(chat(content="") | {"usage": usage | {"prompt_tokens_details": {"cached_tokens": 8}}}).usage
        assert plain is not None
        assert plain.cached is None
        assert told is not None
        assert (told.prompt, told.completion, told.cached) == (9, 2, 8)

    def test_log_probabilities_of_both_protocols(self) -> None:
        legacy = {"tokens": [" a", "b"], "token_logprobs": [-0.5, -1]}
        of_chat = {"content": [{"token": " a", "logprob": -0.5}, {"token": "b", "logprob": -1}]}
        for choice in ({"text": "", "logprobs": legacy}, {"message": {}, "logprobs": of_chat}):
            tokens = answer_of({"choices": [choice]}).tokens
            assert tokens is not None
            assert [(token.text, token.logprob) for token in tokens] == [(" a", -0.5), ("b", -1.0)]

    def test_ids_of_both_protocols(self) -> None:
        """vLLM has the prompt's in the choice of a completion, and beside the choices of a chat."""
        of_text = {"choices": [{"text": "", "token_ids": [3], "prompt_token_ids": [1, 2]}]}
        of_chat = {"choices": [{"message": {}, "token_ids": [3]}], "prompt_token_ids": [1, 2]}
        for document in (of_text, of_chat):
            answer = answer_of(document)
            assert (answer.prompt_ids, answer.ids) == ((1, 2), (3,))
        assert answer_of({"choices": [{"text": ""}]}).ids is None

    def test_an_echo_has_no_log_probability_for_its_first_token(self) -> None:
        echo = {"choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -2.5]}}]}
        assert echoed_of(echo) == [("a", None), ("b", -2.5)]
        assert echoed_of({"choices": [{"logprobs": None}]}) == []

    def test_the_answer_of_a_stream_is_all_its_events(self) -> None:
        events = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"reasoning": "h"}}]},
            {"choices": [{"delta": {"reasoning": "m"}}]},
            {"choices": [{"delta": {"content": "A"}}]},
            {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
        ]
        answer = joined(events)
        assert (answer.text, answer.reasoning, answer.finish) == ("Ab", "hm", "stop")
        assert answer.usage is not None
        assert answer.usage.completion == 5
        pieces = pieces_of(enumerate(events), running=False)
        assert [(piece.at, piece.text) for piece in pieces] == [(1, "h"), (2, "m"), (3, "A"), (4, "b")]

    def test_with_a_running_count_tokens_without_text_count_and_text_without_tokens_does_not(self) -> None:
        def event(text: str, count: int) -> dict[str, Any]:
            return {"choices": [{"text": text}], "usage": {"prompt_tokens": 1, "completion_tokens": count}}

        events = [event("", 0), event("", 1), event("ab", 3), event("c", 3), event("d", 4)]
        pieces = pieces_of(enumerate(events), running=True)
        assert [(piece.at, piece.counted) for piece in pieces] == [(1, 1), (2, 3), (4, 4)]

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
                        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                            st.sampled_from(["choices", "text", "message", "delta", "content", "logprobs", "tokens",
                                             "token_logprobs", "usage", "prompt_tokens", "completion_tokens"]),
                            inner, max_size=4), max_leaves=20))  # fmt: skip
    def test_whatever_a_server_says_is_read_or_refused(self, document: Any) -> None:
        readers: Sequence[Callable[[Any], object]] = (
            answer_of,
            echoed_of,
            lambda one: joined([one]),
            lambda one: pieces_of([(0, one)], running=True),
        )
        for read in readers:
            try:
                read(document)
            except Garbled:
                continue


class TestMetrics:
    @pytest.mark.parametrize(
        ("line", "name", "labels", "value"),
        [
            ("a 1", "a", {}, 1.0),
            ("a:b_c{} -2.5e3", "a:b_c", {}, -2500.0),
            ('a{x="1",y="2"} 3 1395066363000', "a", {"x": "1", "y": "2"}, 3.0),
            ('a { x = "1" , } 3', "a", {"x": "1"}, 3.0),
            (r'msdos_file{path="C:\\DIR\\F.TXT",error="Not \"found\"\n"} 1.458255915e9', "msdos_file",
             {"path": "C:\\DIR\\F.TXT", "error": 'Not "found"\n'}, 1458255915.0),
            ('a{x="}"} +Inf', "a", {"x": "}"}, math.inf),
        ],
    )  # fmt: skip
    def test_a_line_is_read_as_the_format_says(
        self, line: str, name: str, labels: dict[str, str], value: float
    ) -> None:
        (sample,) = parse_metrics(f"# TYPE a counter\n{line}\n").samples
        assert (sample.name, dict(sample.labels), sample.value) == (name, labels, value)

    @pytest.mark.parametrize("line", ["", "# a 1", "a", "a one", "1a 1", "a{x=1", 'a"b" 1'])
    def test_what_is_no_sample_is_left_out(self, line: str) -> None:
        assert parse_metrics(line).samples == ()

    @given(st.text())
    def test_any_text_is_a_page_of_metrics(self, text: str) -> None:
        parse_metrics(text)
        parse_metrics(f'a{{x="{text}"}} 1')

    @pytest.mark.parametrize(
        "line",
        ["a" + " " * 9_000 + "{", "a{" + "}" * 9_000 + "!", "a{" + "b" * 9_000 + "} 1", 'a{b="' + "\\" * 9_000 + "} 1",
         "a " + "1" * 9_000 + " x", "a" * 9_000, 'a{' + 'b="c",' * 1_500 + "} 1", "a{" + "\t" * 9_000 + "} 1"],
    )  # fmt: skip
    def test_no_line_takes_long(self, line: str) -> None:
        begun = time.process_time()
        for _ in range(20):
            parse_metrics(line)
        assert time.process_time() - begun < 1

    def test_sums_are_over_the_engines_of_one_model(self) -> None:
        page = 'd{engine="0",model_name="m"} 1\nd{engine="1",model_name="m"} 2\nd{model_name="n"} 4\nd NaN\n'
        metrics = parse_metrics(page)
        assert (metrics.total("d"), metrics.total("d", "m"), metrics.total("e")) == (7, 3, None)
        assert metrics.mean("d", "m") == 1.5

    def test_a_page_of_a_real_vllm_is_read(self) -> None:
        """vLLM 0.32, n-gram drafts of three tokens: 224 drafts, 672 drafted, 144 accepted: 64, 48 and 32."""
        after = parse_metrics((DATA / "vllm_0.32_metrics.txt").read_text())
        found = speculation(engines()["vllm"], Metrics(()), after, "smollm2")
        assert found == Speculation(144 / 672, 1 + 144 / 224, (64 / 224, 48 / 224, 32 / 224), 224, 672, 144)
        assert of_metrics((DATA / "vllm_0.32_metrics.txt").read_text()).name == "vllm"


def page(drafts: int, drafted: int, accepted: int, *positions: int, model: str = "m") -> Metrics:
    counters = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    lines = [f'vllm:spec_decode_num_{name}_total{{model_name="{model}"}} {n}' for name, n in counters.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="{model}",position="{place}"}} {count}'
        for place, count in enumerate(positions)
    ]
    return parse_metrics("\n".join(lines))


class TestSpeculation:
    def test_is_what_came_between_two_readings(self) -> None:
        """10 drafts of 2 tokens: 9 first ones and 6 second ones accepted, 15 of 20, so 2.5 tokens a step."""
        found = speculation(engines()["vllm"], page(100, 200, 50, 40, 10), page(110, 220, 65, 49, 16), "m")
        assert found == Speculation(0.75, 2.5, (0.9, 0.6), 10, 20, 15)

    def test_is_none_where_nothing_was_drafted(self) -> None:
        same = page(100, 200, 50, 40, 10)
        assert speculation(engines()["vllm"], same, same, "m") is None
        assert speculation(engines()["vllm"], Metrics(()), Metrics(()), "m") is None
        assert speculation(engines()["other"], same, page(110, 220, 65, 49, 16), "m") is None

    def test_is_none_where_the_engine_was_restarted_between(self) -> None:
        assert speculation(engines()["vllm"], page(100, 200, 50), page(10, 20, 5), "m") is None

    def test_of_another_model_does_not_count(self) -> None:
        after = Metrics((*page(10, 10, 9, 9).samples, *page(10, 10, 0, 0, model="n").samples))
        found = speculation(engines()["vllm"], Metrics(()), after, "m")
        assert found is not None
        assert found.acceptance == 0.9

    def test_of_gauges_is_said_without_counts(self) -> None:
        after = parse_metrics("sglang:spec_accept_length 1.8\nsglang:spec_accept_rate 0.8\n")
        assert speculation(engines()["sglang"], Metrics(()), after) == Speculation(0.8, 1.8)
        idle = parse_metrics("sglang:spec_accept_length 0.0\nsglang:spec_accept_rate 0.0\n")
        assert speculation(engines()["sglang"], Metrics(()), idle) is None


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ([{"id": "m", "owned_by": "vllm"}], "vllm"),
        ([{"id": "m", "owned_by": "sglang"}], "sglang"),
        ([{"id": "m", "owned_by": "me"}], None),
        ([{"id": "m", "owned_by": None}], None),
        ([], None),
        ([3, {}], None),
    ],
)
def test_an_engine_is_recognised_by_its_list_of_models(models: list[Any], name: str | None) -> None:
    found = of_models(models)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("text", "name"), [("vllm:a 1\n", "vllm"), ("a 1\nsglang:b 2", "sglang"), ("my_vllm:a 1", "other"), (None, "other")]
)
def test_or_by_its_metrics(text: str | None, name: str) -> None:
    assert of_metrics(text).name == name


def test_the_table_of_engines_conforms() -> None:
    assert validate(json.loads(FILE.read_text()), "serving_engines") == []
