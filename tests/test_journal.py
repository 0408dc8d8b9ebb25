"""Going on where a run was cut off: what counts as finished, and what makes it another run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drafting import SHARDS, sample, with_work

from checkpoint import Draft, Plan, TensorRef, WriteFailed, apply_plan, open_checkpoint, plan_for
from checkpoint import streaming as streaming_module
from checkpoint.journal import fingerprint
from surgery.scheme import Scheme
from surgery.work import PackRows


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is begun when the one before is finished."""
    monkeypatch.setattr(streaming_module, "OPEN", 1)


def plan(source: Path, out: Path, *names: str, **more: Any) -> Plan:
    return plan_for(with_work(Draft.of(open_checkpoint(source)), *names, **more), out)


def cut_off(plan: Plan, out: Path, **more: Any) -> None:
    """Have a run interrupted while it reads for the third shard."""

    def interrupt(shard: str, nbytes: int) -> None:
        if shard == SHARDS[2]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        apply_plan(plan, out, workers=1, progress=interrupt, **more)
    assert any("the same command goes on from there" in note for note in error.value.__notes__)


def written_anew(plan: Plan, out: Path, **more: Any) -> list[str]:
    """Finish the run; the shards whose files are new ones."""
    staged = out.parent / f".{out.name}.ckpt-new"
    before = {path.name: path.stat().st_mtime_ns for path in staged.iterdir()} if staged.exists() else {}
    apply_plan(plan, out, **more)
    return [name for name in SHARDS if before.get(name) != (out / name).stat().st_mtime_ns]


@pytest.fixture
def half(source: Path, target: Path) -> Path:
    """`target` with two of three shards finished beside it."""
    cut_off(plan(source, target, "t0", "t4", "t8"), target)
    return target


def test_the_same_plan_does_no_finished_shard_again_and_gives_the_same_files(
    source: Path, half: Path, tmp_path: Path
) -> None:
    assert written_anew(plan(source, half, "t0", "t4", "t8"), half, workers=3) == [SHARDS[2]]
    undisturbed = apply_plan(plan(source, tmp_path / "other", "t0", "t4", "t8"), tmp_path / "other")
    assert {p.name: p.read_bytes() for p in half.iterdir()} == {
        p.name: p.read_bytes() for p in undisturbed.root.iterdir()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "source", "target"]


def test_hashes_of_finished_shards_are_those_of_their_files(source: Path, half: Path, tmp_path: Path) -> None:
    resumed = apply_plan(plan(source, half, "t0", "t4", "t8"), half)
    anew = apply_plan(plan(source, tmp_path / "other", "t0", "t4", "t8"), tmp_path / "other")
    assert {name: resumed.digests[name] for name in SHARDS} == dict(anew.digests)


def test_progress_counts_what_was_finished_before(source: Path, half: Path) -> None:
    told = 0

    def count(shard: str, nbytes: int) -> None:
        nonlocal told
        told += nbytes

    again = plan(source, half, "t0", "t4", "t8")
    apply_plan(again, half, progress=count)
    assert told == again.bytes_read


def edited_source(source: Path, half: Path) -> Plan:
    path = source / SHARDS[0]
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    return plan(source, half, "t0", "t4", "t8")


def other_source(source: Path, half: Path) -> Plan:
    return plan(sample(source.parent / "elsewhere"), half, "t0", "t4", "t8")


OTHERS: dict[str, Callable[[Path, Path], Plan]] = {
    "other arithmetic": lambda source, half: plan(source, half, "t0", "t4", "t8", step=7),
    "other tensors": lambda source, half: plan(source, half, "t1", "t4", "t8"),
    "an edited source": edited_source,
    "another source": other_source,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_plan_begins_anew(source: Path, half: Path, kind: str) -> None:
    assert written_anew(OTHERS[kind](source, half), half) == list(SHARDS)


def test_a_run_that_hashes_begins_anew_after_one_that_did_not(source: Path, target: Path) -> None:
    cut_off(plan(source, target, "t0", "t4", "t8"), target, hashing=False)
    again = plan(source, target, "t0", "t4", "t8")
    assert written_anew(again, target) == list(SHARDS)


def altered(staged: Path) -> Iterator[Callable[[], object]]:
    yield lambda: (staged / SHARDS[0]).write_bytes((staged / SHARDS[0]).read_bytes()[:-1] + b"\x00")
    yield (staged / SHARDS[0]).unlink
    yield lambda: os.truncate(staged / SHARDS[0], 10)


@pytest.mark.parametrize("number", range(3))
def test_a_file_that_is_not_the_recorded_one_is_written_again(source: Path, half: Path, number: int) -> None:
    staged = half.parent / ".target.ckpt-new"
    list(altered(staged))[number]()
    assert SHARDS[0] in written_anew(plan(source, half, "t0", "t4", "t8"), half)
    assert open_checkpoint(half).tensors


@pytest.mark.parametrize("text", ["", "{", "[]\n[]", "\x00", '{"plan": 1}', '{"shard": "x"}'])
def test_a_journal_that_is_none_counts_for_nothing(source: Path, half: Path, text: str) -> None:
    (half.parent / ".target.ckpt-journal").write_text(text)
    assert written_anew(plan(source, half, "t0", "t4", "t8"), half) == list(SHARDS)


def test_a_line_that_was_cut_off_is_that_of_an_unfinished_shard(source: Path, half: Path) -> None:
    journal = half.parent / ".target.ckpt-journal"
    journal.write_text(journal.read_text()[:-20])
    assert written_anew(plan(source, half, "t0", "t4", "t8"), half) == [SHARDS[1], SHARDS[2]]


def test_a_failure_that_another_try_does_not_mend_keeps_nothing(source: Path, target: Path, tmp_path: Path) -> None:
    def fail(shard: str, nbytes: int) -> None:
        if shard == SHARDS[2]:
            raise OSError(28, "No space left on device")

    with pytest.raises(WriteFailed):
        apply_plan(plan(source, target, "t0", "t4", "t8"), target, workers=1, progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_scheme_and_maths_are_part_of_a_plan(source: Path, target: Path) -> None:
    ref = TensorRef("w", "BF16", (64, 64), source / SHARDS[0], 0, 64 * 64 * 2)
    origin = Draft.of(open_checkpoint(source))

    def print_of(work: PackRows) -> str:
        draft = origin.without(["t0"]).added(work.computed(), SHARDS[0])
        return fingerprint(plan_for(draft, target), hashing=True)

    work = PackRows(ref, Scheme(4, 32), "fp32", "w")
    others = [
        replace(work, scheme=Scheme(4, 64)),
        replace(work, scheme=Scheme(4, 32, symmetric=False)),
        replace(work, scheme=Scheme(8, 32)),
        replace(work, maths="eager"),
        replace(work, source=ref._replace(offset=2)),
    ]
    assert len({print_of(one) for one in (work, *others)}) == 6
    assert print_of(replace(work, label="another")) == print_of(work)
