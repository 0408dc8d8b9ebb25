"""Every reader of what others wrote, over the inputs that are kept and some new ones; without atheris.

`python -m reliability.fuzzing` tries millions. An input of the corpora that once did harm is called `found-...`.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import UnreadableCheckpoint, parse_header
from reliability.fuzzing.campaign import Tally, _added
from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.readers import header
from reliability.fuzzing.target import Target, Wrong
from reliability.fuzzing.targets import targets

TRIED = 60
"""New inputs of a target that are tried here."""

EACH = pytest.mark.parametrize("target", targets().values(), ids=lambda target: target.name)


@EACH
def test_what_was_found_once_does_no_harm(target: Target) -> None:
    for data in [*target.seeds(), *(path.read_bytes() for path in target.kept())]:
        target.run(data)


@EACH
def test_what_is_nearly_right_does_no_harm(target: Target) -> None:
    random = Random(target.name)
    pool = list(target.seeds())
    for _ in range(TRIED):
        data = random.choice(pool)
        data = target.mutate(data, random) if target.mutate else bytes(random.randrange(256) for _ in data)
        target.run(data[: target.longest])
        pool.append(data[: target.longest])


@given(st.randoms(use_true_random=False), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_a_header_changed_in_any_way_is_read_as_safetensors_reads_it_or_refused(random: Random, steps: int) -> None:
    data = random.choice(list(header.seeds()))
    for _ in range(steps):
        data = header.mutate(data, random)
    header.read(data)


@given(st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_mutated_document_is_another_text_of_one(random: Random) -> None:
    document = {"a": [1, {"b": None}], "c": "x", "d": {"e": 2.5}}
    data = json.dumps(document).encode()
    assert any(mutate_json(data, random) != data for _ in range(20))


def test_an_oracle_that_disagrees_is_told() -> None:
    raw = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    found = parse_header(raw, header.NAME, 8 + len(raw) + 4)
    other = raw.replace(b"F32", b"I32")
    with pytest.raises(Wrong, match="safetensors"):
        header._agree(found, len(other).to_bytes(8, "little") + other + bytes(4))


@pytest.mark.parametrize(
    "log, executions, findings",
    [
        ("#9\tNEW    cov: 7 ft: 9 corp: 3/9b\n#100\tDONE   cov: 8 ft: 9 corp: 4/9b lim: 9", 100, 0),
        ("#9\tNEW    cov: 7 ft: 9 corp: 3/9b\n === Uncaught Python exception: ===\nValueError: no\nat\n", 9, 1),
        ("#9\tNEW    cov: 7 ft: 9 corp: 3/9b\n==5== ERROR: libFuzzer: timeout after 20 seconds\n", 9, 1),
        ("#9\tNEW    cov: 7 ft: 9 corp: 3/9b\nKilled\n", 9, 1),
        ("nothing\n", 0, 1),
    ],
)
def test_a_batch_is_counted_and_its_end_told(log: str, executions: int, findings: int) -> None:
    tally = _added(Tally(5, 1.0), log, 2.0, 100)
    assert (tally.executions, len(tally.findings), tally.seconds) == (5 + executions, findings, 3.0)


@pytest.mark.parametrize("length, said", [(1024, None), (1025, "a name of 1,025 characters")])
def test_a_tensor_has_a_name_that_a_pattern_can_be_held_against(length: int, said: str | None) -> None:
    raw = json.dumps({"a" * length: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    if said is None:
        assert len(parse_header(raw, Path("x"), 8 + len(raw) + 4).tensors) == 1
    else:
        with pytest.raises(UnreadableCheckpoint, match=said):
            parse_header(raw, Path("x"), 8 + len(raw) + 4)
