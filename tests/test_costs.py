"""What a checkpoint costs: figures worked by hand from the release's inventory, and from small models' shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import (
    LLAMA,
    changed,
    llama_entries,
    pack,
    packed_llama,
    quantization,
    scheme,
    without,
    write_checkpoint,
)
from costing import experts_only, full_body, full_size, sparse, total
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import Checkpoint, survey
from checkpoint.layout import layout
from costs import DECODING, MEMORY, SPECULATIVE, Costs, Serving, costs, distinct, fit
from costs.parts import DATA, parts, table_order

GIB = 2**30
STATES = 30 * 32 * 128 * 128 * 4
"""Of Qwen3.6-35B-A3B: 30 layers, 32 heads, 128 x 128 values in 32 bits."""
WINDOWS = 30 * 8192 * 3 * 2
"""The last 3 inputs of each of 8,192 channels, in 16 bits."""
KV_TOKEN = 10 * 2 * (2 * 256) * 2
"""10 layers, 2 heads, a key and a value of 256 in 16 bits."""


Builds = dict[str, Callable[..., Costs]]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """What gives the costs of the three published builds, MTP head as in the base."""
    folder = tmp_path_factory.mktemp("builds")
    found = {
        "experts": full_size(folder / "experts", experts_only, 32),
        "body": full_size(folder / "body", full_body, 128),
        "head": full_size(folder / "head", full_body, 128, head=True),
    }
    return {name: partial(costs, checkpoint, document=layout(checkpoint)) for name, checkpoint in found.items()}


def memory_of(one: Costs) -> dict[str, int | None]:
    return {row.part.id: row.memory for row in one.rows}


def read_of(one: Costs) -> dict[str, int]:
    assert one.plain is not None
    return one.plain.weights()


# The release's own numbers: 40 layers, hidden 2,048, 256 experts of 512, vocabulary 248,320, 8 experts a token.
EXPERT_WEIGHTS = 40 * 256 * 3 * 512 * 2048
LINEAR = {
    "shared_experts": 40 * 3 * 512 * 2048,
    "attention": 10 * (8192 * 2048 + 2 * 512 * 2048 + 2048 * 4096),
    "linear_attention": 30 * (8192 * 2048 + 4096 * 2048 + 2048 * 4096),
}
DENSE = {
    "linear_attention_gates": 30 * 2 * 32 * 2048 * 2,
    "linear_attention_state": 30 * (8192 * 4 * 2 + 32 * 4 + 32 * 2),  # A_log in 32 bits, conv1d and dt_bias in 16
    "router": 40 * (256 + 1) * 2048 * 2,
    "norms": (40 * 2 * 2048 + 2048 + 30 * 128 + 10 * 2 * 256) * 2,
    "embedding": 248320 * 2048 * 2,
    "vision": 893_142_496,
}
TABLE = 4 * 262144 * 64 * 2
PACKED_MODULES = {"experts": 40 * 256 * 3, "body": 40 * 256 * 3 + 40 * 3 + 10 * 4 + 30 * 3}
SHAPES = {name: 16 * modules for name, modules in PACKED_MODULES.items()}
SHAPES["head"] = SHAPES["body"] + 16
"""Bytes of `weight_shape`: two 64-bit numbers a packed module."""


def int4(values: int, group_size: int) -> int:
    """Bytes of packed values and their 16-bit scales."""
    return values // 2 + values // group_size * 2


@pytest.mark.parametrize(
    ("name", "experts", "linear", "head"),
    [
        ("experts", int4(EXPERT_WEIGHTS, 32), {part: 2 * n for part, n in LINEAR.items()}, 248320 * 2048 * 2),
        ("body", int4(EXPERT_WEIGHTS, 128), {part: int4(n, 128) for part, n in LINEAR.items()}, 248320 * 2048 * 2),
        (
            "head",
            int4(EXPERT_WEIGHTS, 128),
            {part: int4(n, 128) for part, n in LINEAR.items()},
            248320 * (2048 + 16 * 2),
        ),
    ],
)
def test_the_published_builds_are_counted_by_part(
    name: str, experts: int, linear: dict[str, int], head: int, builds: Builds
) -> None:
    one = builds[name]()
    held = {"experts": experts, **linear, **DENSE, "head": head}
    assert {part: n for part, n in memory_of(one).items() if not part.startswith("mtp")} == held
    assert one.memory == sum(held.values()) + TABLE
    assert one.draft == 1_689_281_536
    assert one.disk == sum(held.values()) + one.draft + SHAPES[name] - 30 * 32 * 2
    read = held | {"experts": experts * 8 // 256, "embedding": 2048 * 2}
    assert read_of(one) == {part: n for part, n in read.items() if part != "vision"}
    assert one.plain is not None
    moved = 1025 * KV_TOKEN + 2 * (STATES + WINDOWS)
    assert one.plain.step == one.plain.token == sum(read.values()) - DENSE["vision"] + moved


PUBLISHED = {"experts": (22.2, 4.6), "body": (19.0, 3.6), "head": (18.6, 3.3)}
"""GiB in the engine, and milliseconds a token on one card."""


def test_memory_is_that_of_the_published_builds(builds: Builds) -> None:
    for name, (published, _) in PUBLISHED.items():
        assert (builds[name]().memory or 0) / GIB == pytest.approx(published, rel=0.01)


def test_one_line_explains_the_published_times(builds: Builds) -> None:
    """A fixed time and one bandwidth for three builds: bytes are what tells them apart."""
    steps = [one.plain.step for name in PUBLISHED if (one := builds[name]()).plain]
    line = fit(steps, [ms / 1000 for _, ms in PUBLISHED.values()])
    assert line is not None
    assert max(abs(one) for one in line.residuals) < 0.05e-3
    assert 2e-3 < line.fixed < 3e-3
    for name, (_, ms) in PUBLISHED.items():
        step = builds[name]().plain
        assert step is not None
        assert step.seconds(4.8e12) < ms / 1000


def test_two_ranks_share_all_but_what_each_needs_whole(builds: Builds) -> None:
    """Norms and routers are whole on each."""
    one, half = memory_of(builds["body"]()), memory_of(builds["body"](tp=2))
    for part in ("experts", *LINEAR, "linear_attention_gates", "embedding", "head"):
        assert 2 * (half[part] or 0) == one[part]
    assert half["router"] == one["router"]
    assert half["norms"] == one["norms"]


def test_key_and_value_heads_are_repeated_where_there_are_more_ranks_than_heads(builds: Builds) -> None:
    eighth = builds["experts"](tp=8)
    q_and_o, k_and_v = 8192 * 2048 + 2048 * 4096, 2 * 512 * 2048
    assert memory_of(eighth)["attention"] == 10 * (q_and_o // 8 + k_and_v // 2) * 2
    assert eighth.caches is not None
    assert eighth.caches.kv_token == KV_TOKEN // 2
    assert eighth.caches.state == (STATES + WINDOWS) // 8


def test_scales_of_whole_rows_are_repeated_where_columns_are_divided(tmp_path: Path) -> None:
    """o_proj and down_proj: each rank has some of the columns and the scale of every row."""
    one = costs(survey(packed_llama(tmp_path / "model", 8, None)), tp=2)
    rows = 128 * 128 + 2 * 64 * 128
    held = {"attention": 2 * (rows // 2 + 256 // 2 * 2 + 128 * 128 // 2 + 128 * 2)}
    held["mlp"] = 2 * (2 * 256 * 128 // 2 + 2 * 256 // 2 * 2 + 128 * 256 // 2 + 128 * 2)
    assert {part: memory_of(one)[part] for part in held} == held


def test_a_vocabulary_is_padded_to_a_multiple_of_64(tmp_path: Path) -> None:
    entries = llama_entries() | dict.fromkeys(
        ("lm_head.weight", "model.embed_tokens.weight"), ("BF16", (65, 128), None)
    )
    one = costs(survey(write_checkpoint(tmp_path / "model", entries, LLAMA | {"vocab_size": 65})))
    assert memory_of(one)["head"] == memory_of(one)["embedding"] == 128 * 128 * 2
    assert read_of(one)["embedding"] == 128 * 2


def test_plain_tensors_are_held_in_the_dtype_of_the_config_and_a_log_in_32_bits(tmp_path: Path) -> None:
    wide = {name: ("F32", shape, data) for name, (_, shape, data) in qwen.entries().items()}
    state = {"linear_attention_state": 3 * (256 * 4 * 2 + 4 * 4 + 4 * 2)}
    for number, entries in enumerate((qwen.entries(), wide)):
        one = costs(survey(write_checkpoint(tmp_path / str(number), entries, qwen.CONFIG)))
        assert memory_of(one) | state == memory_of(one)
        assert memory_of(one)["head"] == 64 * 128 * 2


def test_without_a_dtype_tensors_are_held_as_they_are_stored(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "dtype"}
    wide = {name: ("F32", shape, data) for name, (_, shape, data) in llama_entries().items()}
    assert costs(survey(write_checkpoint(tmp_path / "model", wide, config))).weights == total(wide)


def test_a_weight_shape_is_not_held_and_scales_are_cast(tmp_path: Path) -> None:
    entries = pack(llama_entries(), lambda module: module.endswith("_proj"))
    entries |= {name: ("F32", one[1], None) for name, one in entries.items() if name.endswith("_scale")}
    config = LLAMA | {"quantization_config": quantization("lm_head", group_0=scheme())}
    one = costs(survey(write_checkpoint(tmp_path / "model", entries, config)))
    stored = {name: ("BF16" if part[0] == "F32" else part[0], *part[1:]) for name, part in entries.items()}
    assert one.weights == total(stored, lambda name: not name.endswith("weight_shape"))


def test_a_tied_head_is_the_embedding_held_once_and_read_whole(tmp_path: Path) -> None:
    config = LLAMA | {"tie_word_embeddings": True}
    bare = costs(survey(write_checkpoint(tmp_path / "bare", without(llama_entries(), "lm_head.weight"), config)))
    both = costs(survey(write_checkpoint(tmp_path / "both", llama_entries(), config)))
    for one in (bare, both):
        assert memory_of(one)["embedding"] == read_of(one)["embedding"] == 64 * 128 * 2
        assert memory_of(one).get("head", 0) == read_of(one).get("head", 0) == 0
    assert both.disk == bare.disk + 64 * 128 * 2


def test_a_vision_tower_is_held_and_not_read_and_left_out_on_demand(tmp_path: Path) -> None:
    checkpoint = survey(write_checkpoint(tmp_path / "model", qwen.entries(), qwen.CONFIG))
    vision = total(qwen.entries(), lambda name: name.startswith("model.visual."))
    assert memory_of(costs(checkpoint))["vision"] == vision
    assert "vision" not in read_of(costs(checkpoint))
    assert memory_of(costs(checkpoint, text_only=True))["vision"] == 0


def test_the_mtp_head_is_held_where_it_drafts(tmp_path: Path) -> None:
    checkpoint = survey(write_checkpoint(tmp_path / "model", qwen.entries(), qwen.CONFIG))
    mtp = total(qwen.entries(), lambda name: name.startswith("mtp."))
    idle, drafting = costs(checkpoint), costs(checkpoint, speculative=1, acceptance=0.5)
    assert (idle.draft, drafting.memory) == (mtp, (idle.memory or 0) + mtp)


# The small Qwen3.5-MoE of tests/qwen.py: 4 layers of which 3 linear, 2 of 4 experts, hidden 128, intermediate 64.
SMALL_EXPERTS = 4 * 3 * 64 * 128 * 2
SMALL_STATE = 3 * 4 * 32 * 32 * 2
SMALL_WINDOW = 3 * 256 * 2
SMALL_KV = 2 * 64 * 2


def test_a_speculative_step_by_hand(tmp_path: Path) -> None:
    """Two drafted tokens, three streams: 9 tokens in the body and in the first draft, 3 in the second."""
    checkpoint = survey(write_checkpoint(tmp_path / "model", qwen.entries(), qwen.CONFIG))
    one = costs(checkpoint, context=100, streams=3, speculative=2, acceptance=0.5).speculative
    assert one is not None
    assert one.drafts is not None
    nine, three = 1 - 0.5**9, 1 - 0.5**3
    assert one.body.weights["experts"] == round(4 * SMALL_EXPERTS * nine)
    assert one.body.weights["embedding"] == 9 * 128 * 2
    assert one.body.weights["head"] == 64 * 128 * 2
    assert one.drafts.weights["head"] == 2 * 64 * 128 * 2
    assert one.drafts.weights["embedding"] == 12 * 128 * 2
    assert one.drafts.weights["mtp_experts"] == round(SMALL_EXPERTS * nine) + round(SMALL_EXPERTS * three)
    dense = total(qwen.entries(), lambda name: name.startswith("mtp.") and ".experts." not in name)
    assert one.drafts.weights["mtp"] == 2 * dense
    assert (one.body.kv_read, one.body.kv_written) == (3 * 100 * SMALL_KV, 9 * SMALL_KV)
    assert (one.drafts.kv_read, one.drafts.kv_written) == (2 * 3 * 100 * SMALL_KV, 12 * SMALL_KV)
    assert one.body.state_read == 3 * (SMALL_STATE + SMALL_WINDOW * 3)
    assert one.body.state_written == 3 * (3 * SMALL_STATE + SMALL_WINDOW * 5)
    assert one.emitted == 1.75
    assert one.token == one.step / 3 / 1.75
    assert one.seconds(2.0) == one.step / 2 / 1.75


def test_a_tied_head_is_read_by_each_draft(tmp_path: Path) -> None:
    entries, config = without(qwen.entries(), "lm_head.weight"), qwen.CONFIG | {"tie_word_embeddings": True}
    one = costs(
        survey(write_checkpoint(tmp_path / "model", entries, config)), speculative=3, acceptance=0.5
    ).speculative
    assert one is not None
    assert one.weights()["embedding"] == 4 * 64 * 128 * 2


@pytest.mark.parametrize(("drafted", "acceptance", "emitted"), [(0, 0.9, 1), (1, 0, 1), (1, 1, 2), (3, 0.5, 1.875)])
def test_tokens_of_a_step_are_a_geometric_series(drafted: int, acceptance: float, emitted: float) -> None:
    assert Serving(speculative=drafted, acceptance=acceptance).accepted == emitted


def small(folder: Path, *removed: str, **text: Any) -> Checkpoint:
    """The small Qwen3.5-MoE with other values in its text_config, None for a key that is not there."""
    config = {**qwen.CONFIG, "text_config": qwen.CONFIG["text_config"] | text}
    config["text_config"] = {key: value for key, value in config["text_config"].items() if value is not None}
    return survey(write_checkpoint(folder, without(qwen.entries(), *removed), config))


@pytest.mark.parametrize(
    ("stated", "asked", "width", "why"),
    [
        (None, "auto", 2, "bfloat16 (the model's)"),
        ("float32", "auto", 4, "float32 (mamba_ssm_dtype of config.json)"),
        ("float32", "bfloat16", 2, "bfloat16"),
        ("what", "auto", 2, "bfloat16 (the model's)"),
    ],
)
def test_states_are_in_the_dtype_asked_for_else_the_configs_else_the_models(
    stated: str | None, asked: Any, width: int, why: str, tmp_path: Path
) -> None:
    kept = costs(small(tmp_path / "model", mamba_ssm_dtype=stated), state_dtype=asked).caches
    assert kept is not None
    assert kept.state == 3 * 4 * 32 * 32 * width + SMALL_WINDOW * 3
    assert kept.state_dtype == why


@pytest.mark.parametrize(
    ("stated", "asked", "width"),
    [
        (None, "auto", 2),
        (None, "fp8", 1),
        ({"num_bits": 8, "type": "float"}, "auto", 1),
        ({"num_bits": 8}, "bfloat16", 2),
    ],
)
def test_keys_and_values_are_in_the_dtype_asked_for_else_the_checkpoints(
    stated: Any, asked: Any, width: int, tmp_path: Path
) -> None:
    config = changed(qwen.config(*qwen.SOUND), "quantization_config", "kv_cache_scheme", value=stated)
    checkpoint = survey(write_checkpoint(tmp_path / "model", pack(qwen.entries(), qwen.body_experts), config))
    kept = costs(checkpoint, kv_dtype=asked).caches
    assert kept is not None
    assert kept.kv_token == 2 * 64 * width


@pytest.mark.parametrize(
    ("rope", "table"),
    [
        ({"rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [1]}}, 4 * 100 * 16 * 2),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, 100 * 16 * 2),
        ({"partial_rotary_factor": 1.0}, 100 * 32 * 2),
        ({"rope_scaling": {"mrope_section": [1]}}, 4 * 100 * 8 * 2),
        ({}, 100 * 8 * 2),
    ],
)
def test_the_rotary_table_is_positions_by_rotated_width(rope: dict[str, Any], table: int, tmp_path: Path) -> None:
    assert costs(small(tmp_path / "model", max_position_embeddings=100, **rope)).tables == table


def test_a_table_of_unknown_length_is_not_counted(tmp_path: Path) -> None:
    one = costs(small(tmp_path / "model"))
    assert one.tables is None
    assert one.memory == one.weights


def test_an_unknown_family_has_bytes_on_disk_and_in_memory_alone(tmp_path: Path) -> None:
    checkpoint = survey(write_checkpoint(tmp_path / "model", llama_entries(), LLAMA | {"model_type": "novel"}))
    one = costs(checkpoint)
    assert (one.disk, one.weights) == (total(llama_entries()), total(llama_entries()))
    assert (one.plain, one.caches, one.tables) == (None, None, None)
    assert one.unjudged == {DECODING: "no family file knows this model_type"}


def test_how_ranks_divide_an_unknown_family_is_not_guessed(tmp_path: Path) -> None:
    checkpoint = survey(write_checkpoint(tmp_path / "model", llama_entries(), LLAMA | {"model_type": "novel"}))
    one = costs(checkpoint, tp=2)
    assert set(one.unjudged) == {DECODING, MEMORY}
    assert one.memory is None


def test_a_config_that_lacks_a_key_is_named_and_memory_is_judged_all_the_same(tmp_path: Path) -> None:
    one = costs(small(tmp_path / "model", num_key_value_heads=None))
    assert one.unjudged == {DECODING: "num_key_value_heads is missing"}
    assert one.weights is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ({"num_experts_per_tok": 5}, "a token cannot take 5 of 4 experts"),
        ({"num_experts_per_tok": 0}, "a token cannot take 0 of 4 experts"),
        ({"head_dim": -32}, "config.json makes the size of a cache -64"),
        ({"linear_value_head_dim": 0}, "config.json makes the size of a cache 0"),
        ({"num_key_value_heads": 0}, "config.json makes the size of a cache 0"),
    ],
)
def test_numbers_that_no_model_has_are_not_counted_with(text: dict[str, Any], why: str, tmp_path: Path) -> None:
    one = costs(small(tmp_path / "model", **text), tp=1, speculative=1, acceptance=0.5)
    assert one.unjudged == {DECODING: why}
    assert one.memory is not None


@pytest.mark.parametrize("share", [0, -1, 2, "half"])
def test_a_share_that_means_nothing_is_the_familys(share: Any, tmp_path: Path) -> None:
    one = costs(small(tmp_path / "model", max_position_embeddings=100, partial_rotary_factor=share))
    assert one.tables == 100 * 8 * 2


@pytest.mark.parametrize("method", ["fp8", "gptq"])
def test_what_is_stored_in_another_format_is_not_judged(method: str, tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": method}}
    one = costs(survey(write_checkpoint(tmp_path / "model", llama_entries(), config)))
    assert one.unjudged == dict.fromkeys((MEMORY, DECODING), f"stored as quant_method {method}")
    assert (one.memory, one.plain, one.disk) == (None, None, total(llama_entries()))


@pytest.mark.parametrize("layers", [1, 0])
def test_drafting_without_an_mtp_head_is_not_judged(layers: int, tmp_path: Path) -> None:
    mtp = [name for name in qwen.entries() if name.startswith("mtp.")]
    checkpoint = small(tmp_path / "model", *mtp, mtp_num_hidden_layers=layers)
    one = costs(checkpoint, speculative=1, acceptance=0.5)
    assert one.speculative is None
    assert one.plain is not None
    assert set(one.unjudged) == {SPECULATIVE}


@pytest.mark.parametrize(
    "wrong",
    [{"tp": 0}, {"streams": 0}, {"context": -1}, {"acceptance": 1.1}, {"speculative": -1}, {"kv_dtype": "int8"}],
)
def test_assumptions_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"are 1 or more|is a probability|dtypes are"):
        Serving(**wrong)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_expected_experts_are_the_mean_over_all_draws(tokens: int) -> None:
    draws = list(product(combinations(range(4), 2), repeat=tokens))
    mean = sum(len(set().union(*map(set, draw))) for draw in draws) / len(draws)
    assert isclose(distinct(4, 2, tokens), mean / 4)


@given(st.integers(1, 512).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e))), st.integers(1, 10_000))
def test_one_token_reads_its_experts_and_many_read_all(sizes: tuple[int, int], tokens: int) -> None:
    experts, active = sizes
    assert isclose(distinct(experts, active, 1), active / experts)
    assert distinct(experts, active, tokens) <= distinct(experts, active, tokens + 1) <= 1
    assert isclose(distinct(experts, active, 10**7), 1)


def test_streams_share_what_they_read(tmp_path: Path) -> None:
    """Weights once for all, caches each; all experts in the end."""
    checkpoint = small(tmp_path / "model")
    one, many = costs(checkpoint, streams=1).plain, costs(checkpoint, streams=1000).plain
    assert one is not None
    assert many is not None
    assert one.body.weights["experts"] * 2 == many.body.weights["experts"] == 4 * SMALL_EXPERTS
    assert one.body.weights["attention"] == many.body.weights["attention"]
    assert (1000 * one.body.kv_read, 1000 * one.body.state_read) == (many.body.kv_read, many.body.state_read)
    assert many.token < one.token
    assert many.seconds(1) > one.seconds(1)


def test_a_line_goes_through_points_on_one() -> None:
    line = fit([1e9, 2e9, 4e9], [1.5e-3, 2e-3, 3e-3])
    assert line is not None
    assert (line.fixed, line.bandwidth) == pytest.approx((1e-3, 2e12))
    assert line.residuals == pytest.approx((0, 0, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [([], []), ([1], [1]), ([2, 2], [1, 2]), ([1, 2], [2, 1]), ([1, 2], [1, 1])]
)
def test_there_is_no_line_through_too_few_points_or_for_bytes_that_cost_nothing(
    nbytes: list[float], seconds: list[float]
) -> None:
    assert fit(nbytes, seconds) is None


def test_every_part_has_a_place_in_the_table_and_the_data_their_schema() -> None:
    import json

    from schemas import validate

    document = json.loads(DATA.read_text())
    assert validate(document, "parts") == []
    assert validate(document | {"more": 1}, "parts")
    assert sorted(table_order()) == sorted(part.id for part in parts())


def test_opened_checkpoints_without_data_are_enough(tmp_path: Path) -> None:
    assert costs(sparse(tmp_path / "model", llama_entries(), LLAMA)).weights == total(llama_entries())
