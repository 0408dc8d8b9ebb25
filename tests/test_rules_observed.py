"""Rules on what vLLM 0.24.0 was seen to do with experts that load and resolve: kernels that refuse, scales permuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import qwen
from building import found
from qwen import SOUND, group

from verify.case import Case
from verify.run import judge


def experts(folder: Path, bits: int, group_size: int | None, written: int | None, **options: Any) -> Case:
    """Packed experts of 64 intermediate columns, with `written` as the config's group_size."""
    checkpoint = qwen.stored(folder, bits=bits, group_size=group_size)
    document = qwen.config(*SOUND, group_0=group("Linear", bits=bits, group_size=group_size))
    document["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = written
    return qwen.judged(checkpoint, document, "vllm@0.24", **options)


@pytest.mark.parametrize(
    "bits, group_size, written, expected",
    [(8, None, -1, []), (8, None, None, ["O01"]), (8, 32, 32, ["O01"]), (4, 32, 32, []), (4, None, None, [])],
)
def test_int8_experts_are_per_channel_and_say_so(
    tmp_path: Path, bits: int, group_size: int | None, written: int | None, expected: list[str]
) -> None:
    """vLLM 0.24.0: AssertionError for null and for 128, right with -1; INT4 with null loaded."""
    assert found(judge(experts(tmp_path / "model", bits, group_size, written), only=("O01",))) == expected


@pytest.mark.parametrize(
    "group_size, ranks, wrong",
    [(64, None, True), (64, 1, True), (32, None, False), (32, 2, False), (64, 2, False)],
    ids=["one group", "one group on one rank", "two groups", "smallest group", "not divisible, which raises"],
)
def test_one_group_per_rank_is_permuted(tmp_path: Path, group_size: int, ranks: int | None, wrong: bool) -> None:
    """The table for intermediate size 512 (g64: TP8 wrong, TP4 right; g32: TP8 right), at an eighth of the size."""
    case = experts(tmp_path / "model", 4, group_size, group_size, tp=ranks)
    assert found(judge(case, only=("O02",)), "error") == (["O02"] if wrong else [])


def test_other_engines_have_neither_fault(tmp_path: Path) -> None:
    checkpoint = qwen.stored(tmp_path / "model", bits=8, group_size=64)
    document = qwen.config(*SOUND, group_0=group("Linear", bits=8, group_size=64))
    assert found(judge(qwen.judged(checkpoint, document, "sglang", "transformers"), only=("O",))) == []


def test_finding_names_sizes_and_a_way_out(tmp_path: Path) -> None:
    (finding,) = judge(experts(tmp_path / "model", 4, 64, 64), only=("O02",)).findings
    assert finding.count == qwen.LAYERS
    assert "64" in finding.found
    assert "expert parallel" in finding.remedy
    assert finding.engines == ("vllm@0.24",)
