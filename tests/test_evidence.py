"""The proof on a GPU, as far as it can be tested without one: its catalogue, its arithmetic, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.page import filled
from evidence import device, timed
from evidence.observed import defect_row, distance, effect
from evidence.page import PAGE, RESULTS, blocks
from evidence.planted import PLANTED
from verify import RULES, load_rules


def test_page_is_current() -> None:
    """If this fails: python -m evidence.page"""
    text = PAGE.read_text()
    assert filled(text, blocks(RESULTS)) == text


def test_planted_defects_have_names_of_their_own_and_known_rules() -> None:
    load_rules()
    assert len({planted.name for planted in PLANTED}) == len(PLANTED) >= 30
    assert {planted.rule for planted in PLANTED} <= RULES.keys()


def test_each_planted_defect_was_found_by_its_rule() -> None:
    verdicts = json.loads((RESULTS / "verdicts.json").read_text())
    assert [verdict["name"] for verdict in verdicts] == [planted.name for planted in PLANTED]
    assert all([planted.rule, "error"] in v["verify"]["rules"] for planted, v in zip(PLANTED, verdicts, strict=True))


def run(*logprobs: float, **more: object) -> dict[str, object]:
    """A run that gave these log-probabilities at one place."""
    place = {str(token): value for token, value in enumerate(logprobs)}
    return {"status": "ran", "prompt_logprobs": [[place]], **more}


def test_distance_is_the_mean_over_tokens_that_both_list() -> None:
    assert distance(run(-1.0, -2.0, -9.0), run(-1.5, -1.0)) == pytest.approx(0.75)
    assert math.isnan(distance(run(-1.0), run(math.nan)) or 0.0)
    assert distance(run(-1.0), {"status": "raised"}) is None


@pytest.mark.parametrize(
    "drafted, expected",
    [
        ({"status": "raised", "error": "KeyError: 'x'"}, "raises"),
        (run(-1.0, acceptance=1.0), "nothing"),
        (run(-1.004, acceptance=1.0), "nothing"),
        (run(-1.2, acceptance=1.0), "wrong"),
        (run(math.nan, acceptance=1.0), "wrong"),
        (run(-1.0, acceptance=0.0), "no drafts"),
        ({}, "not run"),
    ],
)
def test_effect_of_a_defect(drafted: dict[str, object], expected: str) -> None:
    none = {"rules": []}
    verdict = {"name": "d", "what": "", "on": "body", "verify": none, "verify_alone": none}
    row = defect_row(verdict, {"defect-d+draft": drafted, "body+draft": run(-1.0, acceptance=1.0)}, 0.001)
    assert row["effect"] == expected
    assert effect({**row, "status": "no result"}, 0.001) == "no result"


def test_page_tells_what_is_missing(tmp_path: Path) -> None:
    assert set(blocks(tmp_path).values()) == {"Not run yet."}


def test_a_step_is_one_graph_and_its_sampling_and_prefill_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(100))
    monkeypatch.setattr(device, "_event", lambda: next(moments))
    steps = device.Steps()
    steps.replayed()  # 0
    steps.sampled()  # 1
    for _ in range(40):  # the pieces of a prefill
        steps.replayed()
    steps.sampled()
    steps.replayed()  # 42: the forty have 2 to 41, their sampling none
    steps.sampled()
    assert steps.pairs == [(0, 1), (42, 43)]


@pytest.mark.parametrize(
    "kernel, kind",
    [
        ("void marlin_moe_wna16::Marlin<1125899906909960l, 1l>", "routed experts, Marlin"),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int, machete::MacheteCollectiveMma<",
            "packed",
        ),
        ("nvjet_sm90_tst_128x8_64x12_4x1_v_bz_TNT", "dense"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "dense"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<", "attention"),
        ("fused_recurrent_gated_delta_rule_packed_decode_kernel", "linear attention"),
        ("void vllm::moe::topkGating<8, 256, 4, 16, 32, int>", "routing"),
        ("triton_poi_fused_mul_silu_slice_0", "all else"),
    ],
)
def test_the_kind_of_a_kernel(kernel: str, kind: str) -> None:
    assert kind in timed.kind_of(kernel)


def test_kernels_are_summed_by_kind() -> None:
    kernels = {"nvjet_a": [40.0, 0.5], "nvjet_b": [10.0, 0.25], "triton_c": [30.0, 0.125]}
    row = timed.row("x", {"streams": 1, "step_ms": 4.5, "clock_ms": 4.6, "kernels": kernels})
    dense = next(told for kind, told in row["kinds"].items() if "cuBLAS" in kind)
    assert dense == {"kernels": 50, "ms": 0.75}
    assert sum(told["ms"] for told in row["kinds"].values()) == 0.875
