"""Memory, open files and time stay within bounds, and bytes stay the same: `reliability/limits`, less of everything."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from building import write_shard

from checkpoint import Files, ShardPlan
from ckpt.planning import _rows
from reliability.limits.growth import slope
from reliability.rows import Row

ROOT = Path(__file__).parents[1]


def short_form(harness: str) -> str:
    command = [sys.executable, "-m", harness, "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_memory_files_and_time_stay_within_bounds() -> None:
    said = short_form("reliability.limits")
    for subject in (
        "quantize: one tensor",
        "200 shards with 64 open files",
        "config groups: verify",
        "ignore patterns:",
    ):
        assert subject in said


def test_the_same_command_makes_the_same_bytes_wherever_it_runs() -> None:
    said = short_form("reliability.reproducible")
    for subject in ("5 workers", "torch's kernels", "PYTHONHASHSEED=1", "umask 077", "from hf://", "in place"):
        assert subject in said


@pytest.mark.parametrize(
    "time, expected", [(lambda n: n, 1.0), (lambda n: n * n, 2.0), (lambda n: 1000 + n * n / 100, 1.9)]
)
def test_the_slope_is_that_of_the_steepest_part(time: Callable[[int], float], expected: float) -> None:
    sizes = [1000, 2000, 4000, 8000]
    assert slope(sizes, [time(size) for size in sizes]) == pytest.approx(expected, abs=0.1)


@pytest.fixture
def few_files() -> Iterator[int]:
    """So many files as a process may open, for as long as the test lasts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = len(os.listdir("/proc/self/fd")) + 24
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, before[1]))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_files_are_read_where_few_may_be_open(tmp_path: Path, few_files: int) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(100)]
    for number, path in enumerate(paths):
        write_shard(path, {"x": ("U8", (1,), bytes([number]))})
    with Files() as files:
        size = paths[0].stat().st_size
        assert [files.read(path, size - 1, 1) for path in paths] == [bytes([number]) for number in range(100)]
        assert len(os.listdir("/proc/self/fd")) < few_files


def test_a_shard_is_not_compared_with_every_other_to_show_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(one: object, other: object) -> bool:
        raise AssertionError("compared")

    linked = ShardPlan("a.safetensors", "b.safetensors", "linked", Path("a"), {}, b"", 10, 0)
    monkeypatch.setattr(ShardPlan, "__eq__", compared)
    same = replace(linked, was="a.safetensors")
    rows = list(_rows(iter([linked, same, replace(linked, action="copied")])))
    assert [row[0] for row in rows] == ["action", "linked", "linked", "copied"]


def test_a_row_says_how_often_it_held() -> None:
    assert str(Row("something", 20, 19, "why")) == "   19 of 20    something (why)"
