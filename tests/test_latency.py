"""Measuring by the clock: servers on real sockets that follow a script, whose own record is what is expected.

Waits of the script are lower bounds that always hold; upper ones leave room for a busy machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest
from scripted import (
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    Script,
    ScriptedServer,
    Step,
    answered,
    event,
    piece,
    routed,
    total,
)
from speaking import COMPLETIONS, failing, measured, speaking, streamed, tokens_in

from latency import Candidate, Settings, measure
from serving import Declined, Server, ServerFault

pytest.importorskip("httpx")

NS_PER_MS = 1e6
ROOM_MS = 150.0
"""What a busy machine may add to a time."""


def test_times_are_those_of_the_script_and_counts_are_exact() -> None:
    servers: list[ScriptedServer] = []
    settings = Settings(output_tokens=6, rounds=3, warmup=1, prompt_tokens=(40,))
    result = measured(settings, speaking(first=0.08, each=0.03), more=servers)
    turns = [turn for done in result.cells[0].rounds["c0"] for turn in done.turns]
    records = [sent for sent in servers[0].sent if sent.request.body and sent.request.body.get("stream")][1:]
    assert len(turns) == len(records) == 3
    for turn, record in zip(turns, records, strict=True):
        pieces = [at for at, raw in record.sends if b'"text": "x"' in raw]
        assert turn.output_tokens == len(pieces) == 6
        assert turn.prompt_tokens == tokens_in(record.request.body["prompt"])
        began = (pieces[0] - record.request.got) / NS_PER_MS
        went = (pieces[-1] - pieces[0]) / NS_PER_MS
        assert turn.first is not None
        assert turn.token is not None
        assert turn.first >= 80
        assert turn.first == pytest.approx(began, abs=ROOM_MS)
        assert 5 * turn.token == pytest.approx(went, abs=ROOM_MS)
        assert turn.first + 5 * turn.token <= turn.whole + 1e-6
        assert turn.whole <= began + went + 2 * ROOM_MS


@pytest.mark.parametrize(("owner", "running"), [("nobody", False), ("vllm", True)])
def test_tokens_that_come_in_bunches_are_each_timed(owner: str, running: bool) -> None:
    """13 tokens in bunches of 4, three waits: 12 tokens after a first one, or 9 after a bunch of 4. The end follows the
    last bunch at once, so that what comes after the first is what the tokens took."""
    settings = Settings(output_tokens=13, rounds=1, warmup=0, prompt_tokens=(40,))
    result = measured(settings, speaking(each=0.1, bunch=4, running=running), owner=owner)
    (turn,) = result.cells[0].rounds["c0"][0].turns
    assert turn.output_tokens == 13
    assert turn.first is not None
    assert turn.token is not None
    after = 9 if running else 12
    assert after - 1e-6 <= (turn.whole - turn.first) / turn.token <= after * 1.3
    assert 300 - ROOM_MS <= after * turn.token <= 300 + ROOM_MS


def test_streams_run_at_the_same_time_and_throughput_is_of_all() -> None:
    servers: list[ScriptedServer] = []
    settings = Settings(streams=(4,), output_tokens=5, rounds=2, warmup=1, prompt_tokens=(40,))
    result = measured(settings, speaking(first=0.2, each=0.02), more=servers)
    requests = streamed(servers[0])
    assert len(requests) == 12
    for done, group in zip(result.cells[0].rounds["c0"], (requests[4:8], requests[8:12]), strict=True):
        assert len(done.turns) == 4
        began = [request.got for request in group]
        assert (max(began) - min(began)) / NS_PER_MS < 200, "all were asked before the first was answered"
        slowest = max(turn.whole for turn in done.turns) / 1e3
        assert 20 / (slowest + ROOM_MS / 1e3) <= done.tokens_per_second <= 20 / slowest + 1e-6


def test_what_was_really_emitted_counts_not_what_was_asked_for() -> None:
    result = measured(Settings(output_tokens=50, rounds=1, warmup=0), speaking(tokens=3))
    (turn,) = result.cells[0].rounds["c0"][0].turns
    assert turn.output_tokens == 3


@pytest.mark.parametrize(("owner", "sent"), [("vllm", True), ("nobody", None)])
def test_answers_are_made_as_long_as_asked_where_the_engine_can(owner: str, sent: bool | None) -> None:
    servers: list[ScriptedServer] = []
    measured(Settings(output_tokens=2, rounds=1, warmup=0), speaking(), owner=owner, more=servers)
    assert {request.body.get("ignore_eos") for request in streamed(servers[0])} == {sent}


class TestOrder:
    def orders(self, seed: int) -> list[tuple[int, ...]]:
        """The order of three servers in each of eight rounds, by when requests came."""
        servers: list[ScriptedServer] = []
        settings = Settings(output_tokens=2, rounds=6, warmup=2, seed=seed)
        result = measured(settings, *[speaking()] * 3, more=servers)
        came = sorted((request.got, which) for which, one in enumerate(servers) for request in streamed(one))
        found = [tuple(which for _, which in came[at : at + 3]) for at in range(0, len(came), 3)]
        places = [[rounds[number].place for rounds in result.cells[0].rounds.values()] for number in range(6)]
        assert [[order.index(which) for which in range(3)] for order in found[2:]] == places
        return found

    def test_every_round_asks_each_once_in_an_order_of_its_own_that_the_seed_decides(self) -> None:
        orders = self.orders(1)
        assert len(orders) == 8
        assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2)}
        assert len(set(orders)) > 1
        assert orders == self.orders(1) != self.orders(2)

    def test_rounds_before_the_first_are_not_in_the_result(self) -> None:
        result = measured(Settings(output_tokens=2, rounds=3, warmup=2), speaking())
        assert [done.number for done in result.cells[0].rounds["c0"]] == [0, 1, 2]


def test_acceptance_is_what_the_metrics_grew_by_in_each_round() -> None:
    """Each answer adds 4 drafts of 2 tokens; 3 first and 1 second ones are accepted. Requests before do not count."""

    def metrics(requests: Callable[[], Sequence[Request]]) -> Script:
        def script(request: Request) -> Iterable[Step]:
            done = len([one for one in requests() if one.body.get("stream")])
            names = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 4}
            lines = [f'vllm:spec_decode_num_{name}_total{{model_name="m"}} {n * done}' for name, n in names.items()]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="{at}"}} {n * done}'
                for at, n in enumerate((3, 1))
            ]
            yield answered("\n".join(lines), kind="text/plain")

        return script

    def script(request: Request) -> Iterable[Step]:
        routes = {COMPLETIONS: speaking(running=True), "/metrics": metrics(lambda: server.requests(COMPLETIONS))}
        return routed(routes)(request)

    with ScriptedServer(script) as server:
        settings = Settings(output_tokens=2, rounds=2, warmup=1, streams=(1, 3))
        with Server(server.url) as client:
            assert client.engine.name == "vllm"
            result = measure([Candidate("a", client)], settings)
    for cell in result.cells:
        for done in cell.rounds["a"]:
            found = done.speculation
            assert found is not None
            assert (found.acceptance, found.length, found.by_position) == (0.5, 2.0, (0.75, 0.25))
            assert (found.drafts, found.drafted, found.accepted) == tuple(n * cell.streams for n in (4, 8, 4))


class TestFailures:
    def test_before_anything_counts_end_the_measurement(self) -> None:
        refusal = answered({"detail": "no"}, "503 Service Unavailable")
        with pytest.raises(Declined, match="HTTP 503: no"):
            measured(Settings(output_tokens=2, warmup=1), speaking(), failing({0}, refusal))

    def test_later_leave_what_was_measured_and_are_told(self) -> None:
        refusal = answered({"detail": "no"}, "503 Service Unavailable")
        settings = Settings(output_tokens=2, rounds=4, warmup=1, streams=(1, 2))
        result = measured(settings, speaking(), failing({3}, refusal))
        first, second = result.cells
        assert [len(rounds) for rounds in first.rounds.values()] == [4, 2]
        assert [len(rounds) for rounds in second.rounds.values()] == [4, 4]
        (failure,) = result.failures
        assert (failure.candidate, failure.number) == ("c1", 2)
        assert "HTTP 503: no" in failure.message

    def test_of_an_answer_without_tokens(self) -> None:
        def empty(request: Request) -> Iterable[Step]:
            if not request.body.get("stream"):
                return speaking()(request)
            return [STREAM_HEAD, piece("", "stop"), total(0), event("[DONE]"), LAST_CHUNK]

        with pytest.raises(ServerFault, match="no token to time"):
            measured(Settings(output_tokens=2), empty)

    def test_of_one_stream_of_many_fail_the_round(self) -> None:
        refusal = answered({"detail": "no"}, "503 Service Unavailable")
        result = measured(Settings(output_tokens=2, rounds=2, warmup=0, streams=(3,)), failing({4}, refusal))
        assert len(result.cells[0].rounds["c0"]) == 1
        assert len(result.failures) == 1


def test_the_run_is_different_each_time_and_the_text_is_not_its_secret() -> None:
    results = [measured(Settings(output_tokens=2, rounds=1, warmup=0), speaking()) for _ in range(2)]
    assert results[0].run != results[1].run
    assert all(re.fullmatch("[0-9a-f]{8}", result.run) for result in results)


def test_time_per_token_is_told_apart_from_time_to_the_first() -> None:
    """One is slow to begin, the other slow to go on."""
    settings = Settings(output_tokens=5, rounds=2, warmup=0, prompt_tokens=(40,))
    result = measured(settings, speaking(first=0.3), speaking(each=0.1))
    (late, _), (slow, _) = result.cells[0].rounds.values()
    assert late.turns[0].first is not None
    assert slow.turns[0].first is not None
    assert late.turns[0].first > 300 > slow.turns[0].first
    assert late.turns[0].token is not None
    assert slow.turns[0].token is not None
    assert late.turns[0].token < 50 < slow.turns[0].token
    assert all(one < two for one, two in pairwise([slow.turns[0].first, slow.turns[0].whole]))
