"""The benchmark's own logic: what it measures, how it computes, what it writes. No test asks how fast anything is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import Entry, write_shard
from jsonschema import Draft202012Validator

from benchmarks import page
from benchmarks.__main__ import main
from benchmarks.case import Setting, compare, ratio, seconds
from benchmarks.inputs import MTP, Experts, Head, make
from benchmarks.measuring import CommandFailed, Contender, forget, in_turns, python, readable, resident, run, shell
from benchmarks.reasons import reasons
from benchmarks.result import CaseResult, Check, Figure, Result, Series, document, load, save
from benchmarks.stored import flip_a_bit, places, same
from benchmarks.tables import gpu_markdown, markdown, table

SCHEMA = json.loads((Path(page.__file__).with_name("result.schema.json")).read_text())


def series(name: str, *timings: float, **more: Any) -> Series:
    return Series(name, "ours", "process", f"run {name}", timings, peak=(50_000_000,) * len(timings), **more)


@pytest.fixture
def result() -> Result:
    """A run with one of everything."""
    figures = (
        Figure("times faster", 25.04, "x", 20, by_minima=24.0),
        Figure("time relative to cp", 1.5, "x", 1.2, "at most"),
        Figure("of interest", 1234.5, "x"),
    )
    case = CaseResult(
        "experts",
        "Experts",
        "1 layer",
        (series("ckpt a|b", 2.0, 1.0, 4.0, nbytes=3_000_000_000),),
        figures,
        (Check("bits are equal", True), Check("nothing else is", False)),
        ("a note",),
    )
    skipped = CaseResult("scaling", "Growth", "", skipped="needs 30 GB of disk")
    failed = CaseResult("head", "Head", "", failed="ckpt quantize\nended with 3:\nno disk")
    facts = {"processor": "P", "cores": "2", "memory": "24 GiB", "kernel": "K", "file system": "ext4"}
    versions = dict.fromkeys(("ckpt", "python", "torch", "numba", "compressed-tensors", "llmcompressor"), "1.0")
    cases = (case, skipped, failed)
    return Result(facts, versions, "python -m benchmarks", "2026-11-30 12:00 UTC", False, 3, cases)


# Measuring


def test_a_run_knows_its_time_code_output_and_bytes() -> None:
    found = run(shell('sleep 0.1; head -c 5000000 "$1"; exit 3', "/dev/zero"), frozenset({3}))
    assert found.seconds >= 0.1
    assert (found.code, len(found.output)) == (3, 5_000_000)
    assert 5_000_000 <= found.read < 6_000_000
    assert 5_000_000 <= found.written < 6_000_000


def test_peak_memory_is_that_of_the_command_and_not_of_who_measures() -> None:
    held = bytearray(300_000_000)
    small = run(shell("true")).peak
    large = run((*python("")[:1], "-c", "bytearray(200_000_000)")).peak
    assert len(held) > 200_000_000 > 100_000_000 > small
    assert 200_000_000 < large < 300_000_000


def test_a_command_that_fails_is_refused_with_what_it_said() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)ended with 1.*no such thing"):
        run(shell("echo no such thing; exit 1"))


def test_contenders_take_turns_and_each_repeat_begins_with_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    contenders = [Contender(name, "ours", shell(f"echo {name} >> $1", log)) for name in "abc"]
    contenders[1] = replace(contenders[1], most=1)
    runs, failed = in_turns(contenders, 3)
    assert log.read_text().split() == list("abc" + "ca" + "ca")
    assert ({name: len(mine) for name, mine in runs.items()}, failed) == ({"a": 3, "b": 1, "c": 3}, [])


def test_a_peer_that_fails_is_noted_and_left_out() -> None:
    contenders = [Contender("ours", "ours", shell("true")), Contender("peer", "peer", shell("echo broken; exit 1"))]
    runs, failed = in_turns(contenders, 2)
    assert (len(runs["ours"]), len(runs["peer"])) == (2, 0)
    assert len(failed) == 1
    assert "broken" in failed[0]


def test_ours_failing_ends_the_case() -> None:
    with pytest.raises(CommandFailed):
        in_turns([Contender("ours", "ours", shell("exit 1"))], 2)


def test_a_call_timed_inside_gives_two_series(tmp_path: Path) -> None:
    say = Contender("call", "ours", shell("""sleep 0.1; echo noise; echo '{"seconds": 0.25}'"""), timed_inside=True)
    found = compare([say], Setting(tmp_path, 2, 0))
    inside, whole = found.of("call", "in process"), found.of("call")
    assert inside is not None
    assert whole is not None
    assert (inside.seconds, inside.peak) == ((0.25, 0.25), ())
    assert whole.minimum >= 0.1


def test_commands_are_kept_without_the_paths_of_this_machine(tmp_path: Path) -> None:
    assert readable(python("ckpt", "verify", tmp_path / "out"), tmp_path) == "python -m ckpt verify WORK/out"


def test_what_a_command_read_shows_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(40_000_000))
    forget([path])
    if resident([path]) != 0:
        pytest.skip("this file system or machine does not tell")
    run(shell('head -c 4096 "$1" > /dev/null', path))
    assert 0 < (resident([path]) or 0) < 20_000_000
    run(shell('cat "$1" > /dev/null', path))
    assert resident([path]) == 40_001_536  # whole pages


# What was written


def shard(folder: Path, **entries: Entry) -> Path:
    folder.mkdir()
    write_shard(folder / "model.safetensors", entries)
    return folder


def test_equal_tensors_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    a, b = ("U8", (3,), b"abc"), ("U8", (2,), b"de")
    one, other = shard(tmp_path / "1", a=a, b=b), shard(tmp_path / "2", b=b, a=a)
    assert same(one, other)
    assert same(one, shard(tmp_path / "3", b=b), ["b"])


@pytest.mark.parametrize(
    "changed", [("U8", (3,), b"abd"), ("I8", (3,), b"abc"), ("U8", (1, 3), b"abc")], ids=["bytes", "dtype", "shape"]
)
def test_a_difference_in_bytes_dtype_or_shape_is_seen(
    tmp_path: Path, changed: tuple[str, tuple[int, ...], bytes]
) -> None:
    one, other = shard(tmp_path / "1", a=("U8", (3,), b"abc")), shard(tmp_path / "2", a=changed)
    assert not same(one, other)


def test_a_tensor_too_many_or_too_few_is_seen(tmp_path: Path) -> None:
    a = ("U8", (3,), b"abc")
    one, other = shard(tmp_path / "1", a=a), shard(tmp_path / "2", a=a, b=a)
    assert not same(one, other)
    assert not same(one, other, ["b"])


def test_a_flipped_bit_is_a_difference_until_it_is_flipped_back(tmp_path: Path) -> None:
    one, other = (shard(tmp_path / name, a=("U8", (4,), b"abcd")) for name in "12")
    flip_a_bit(places(other)["a"])
    assert not same(one, other)
    flip_a_bit(places(other)["a"])
    assert same(one, other)


def test_files_are_read_as_safetensors_writes_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = places(tmp_path)
    assert {name: (place.dtype, place.shape) for name, place in found.items()} == {
        "a": ("I64", (2, 3)),
        "b": ("BF16", (5,)),
    }
    data = (tmp_path / "model.safetensors").read_bytes()
    assert data[found["a"].offset :][: found["a"].nbytes] == tensors["a"].numpy().tobytes()


# Inputs


def test_inputs_have_the_shapes_of_the_release() -> None:
    from demo.replica import inventory

    released = {name: tuple(shape) for name, (_, shape) in inventory().items()}
    layers = Experts(layers=40).tensors()
    assert layers.items() <= released.items()
    assert Experts(layers=40).nbytes == sum(2 * a * b * c for a, b, c in layers.values())
    assert (Head().vocabulary, Head().hidden) == released["lm_head.weight"]


def test_weights_are_rounded_to_bf16_as_torch_rounds_and_come_from_the_seed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from numpy.random import default_rng
    from safetensors.torch import load_file

    size = {"experts": 2, "intermediate": 32, "hidden": 64}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        make("experts", tmp_path / name, size=size, seed=seed)
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    found = torch.cat([stored[name].flatten() for name in sorted(stored)])
    values = torch.from_numpy(default_rng(7).standard_normal(len(found), dtype="float32")) * 0.02
    assert torch.equal(found, values.to(torch.bfloat16))


def test_a_small_export_lacks_the_draft_head_unless_complete(tmp_path: Path) -> None:
    base = make("base", tmp_path / "base", small=True, seed=0)
    assert sum(name.startswith(MTP) for name in places(base)) == 19
    for complete in (False, True):
        out = make("export", tmp_path / str(complete), base=str(base), shards=2, complete=complete, seed=0)
        names = places(out)
        assert any(name.startswith(MTP) for name in names) is complete
        assert ("lm_head.weight_packed" in names, "lm_head.weight" in names) == (complete, not complete)


# Figures and results


def test_ratios_are_of_medians_and_minima() -> None:
    (found,) = ratio("r", series("slow", 10.0, 30.0, 20.0), series("fast", 1.0, 5.0, 4.0), 4)
    assert (found.value, found.by_minima, found.reached) == (5.0, 10.0, True)


def test_no_figure_comes_of_what_did_not_run() -> None:
    assert ratio("r", None, series("fast", 1.0)) == ratio("r", series("slow", 1.0), None) == seconds(None, 1) == []


@pytest.mark.parametrize(
    "value, target, sense, reached",
    [
        (20, 20, "at least", True),
        (19.9, 20, "at least", False),
        (1.2, 1.2, "at most", True),
        (1.3, 1.2, "at most", False),
        (7, None, "at least", None),
    ],
)
def test_a_target_is_reached_or_not(value: float, target: float | None, sense: Any, reached: bool | None) -> None:
    assert Figure("f", value, "x", target, sense).reached is reached


def test_a_result_reads_back_as_it_was_written(result: Result, tmp_path: Path) -> None:
    save(result, tmp_path / "deep" / "result.json")
    assert load(tmp_path / "deep" / "result.json") == result


def test_the_file_satisfies_the_schema_and_holds_medians_and_verdicts(result: Result) -> None:
    found = document(result)
    Draft202012Validator(SCHEMA).validate(found)
    case = found["cases"][0]
    assert (case["series"][0]["median"], case["series"][0]["minimum"]) == (2.0, 1.0)
    assert [figure["reached"] for figure in case["figures"]] == [True, False, None]


def test_a_file_of_another_version_is_refused(result: Result, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(document(result) | {"version": 99}))
    with pytest.raises(ValueError, match="another version"):
        load(tmp_path / "r.json")


def test_a_reason_stands_beside_a_missed_target_and_nowhere_else(result: Result) -> None:
    given = {"experts": {"times faster": "no", "time relative to cp": "the disk", "unknown": "?"}}
    figures = result.with_reasons(given).cases[0].figures
    assert [figure.reason for figure in figures] == ["", "the disk", ""]
    assert result.with_reasons(given).with_reasons({}) == result


# The page


def test_the_table_says_what_was_asked_and_what_came_out(result: Result) -> None:
    text = markdown(result.with_reasons({"experts": {"time relative to cp": "the disk"}}))
    assert "| Experts | times faster | at least 20.0 x | 25.0 x (24.0) | yes |  |" in text
    assert "| Experts | time relative to cp | at most 1.20 x | 1.50 x | **no** | the disk |" in text
    assert "| Growth | all |  |  | not measured | needs 30 GB of disk |" in text
    assert "| Head | all |  |  | not measured | no disk |" in text


def test_a_case_shows_contenders_figures_checks_and_notes(result: Result) -> None:
    text = markdown(result)
    assert "| ckpt a\\|b | 2.00 s (1.00) | 1.50 | 50 MB |" in text
    for line in ("- of interest: 1,234 x", "- proven: bits are equal", "- **wrong**: nothing else is", "- a note"):
        assert line in text


def test_columns_that_are_empty_are_left_out() -> None:
    assert table(("a", "b", "c"), [("1", "", 2), ("3", "", "")]) == "| a | c |\n| --- | --- |\n| 1 | 2 |\n| 3 |  |"


def test_tiny_inputs_are_not_published(result: Result) -> None:
    with pytest.raises(ValueError, match="quick"):
        markdown(replace(result, quick=True))


def test_a_gpu_result_shows_what_was_asked_for_and_folds_the_rest() -> None:
    row = {"name": "pack", "value": 123.4, "unit": "GB/s", "target": "at least 100", "reached": True, "note": "n"}
    other = {"name": "copy", "value": 1, "unit": "s", "target": None, "reached": None, "note": ""}
    text = gpu_markdown({"machine": {"gpu": "H200"}, "versions": {"torch": "2.13"}, "rows": [row, other]})
    assert "gpu H200. torch 2.13." in text
    assert "| pack | 123 GB/s | at least 100 | yes | n |" in text
    assert text.index("| pack") < text.index("<details>") < text.index("| copy | 1.00 s |") < text.index("</details>")


def test_blocks_go_between_their_markers_and_nowhere_else() -> None:
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    once = page.filled(text, {"x": "new \\1"})
    assert once == "a\n<!-- x: begin -->\nnew \\1\n<!-- x: end -->\nb\n"
    assert page.filled(once, {"x": "new \\1"}) == once


@pytest.mark.parametrize("text", ["", "<!-- x: begin -->", "<!-- x: begin --><!-- x: end -->" * 2])
def test_a_page_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="x: begin"):
        page.filled(text, {"x": "new"})


def test_the_committed_page_is_what_the_committed_results_give() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, page.blocks(page.CPU, page.GPU)) == text


def test_reasons_are_for_figures_that_exist() -> None:
    assert isinstance(reasons(), dict)
    if page.CPU.is_file():
        figures = {(case.name, figure.name) for case in load(page.CPU).cases for figure in case.figures}
        assert {(case, name) for case, mine in reasons().items() for name in mine} <= figures


# The whole


def test_a_quick_run_proves_its_checks_writes_its_result_and_cleans_up(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "result.json"
    assert main(["--quick", "--only", "int8-head", "--work", str(tmp_path / "work"), "--result", str(path)]) == 0
    found = load(path)
    Draft202012Validator(SCHEMA).validate(json.loads(path.read_text()))
    assert [case.name for case in found.cases] == ["int8-head"]
    assert [check.passed for check in found.cases[0].checks] == [True] * 3
    assert str(tmp_path) not in json.dumps([one.command for case in found.cases for one in case.series])
    assert not list((tmp_path / "work").iterdir())


def test_a_case_that_would_fill_the_disk_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["--only", "experts", "--disk", "1", "--work", str(tmp_path / "work"), "--result", str(path)]
    assert main(words) == 0
    assert load(path).cases[0].skipped == "needs 5 GB of disk, and may use 1"
