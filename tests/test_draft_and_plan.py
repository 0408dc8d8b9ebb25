"""What a draft will become, known before anything is read or written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from building import edit_json, write_checkpoint, write_shard
from drafting import SHARDS, Inverted, entries, opened, sample, with_work

from checkpoint import (
    INDEX,
    Checkpoint,
    Computed,
    Document,
    Draft,
    Header,
    Plan,
    Problem,
    Refused,
    TensorRef,
    make_plan,
    open_checkpoint,
    parse_header,
)
from checkpoint.plan import HASHING, shard_names

NOWHERE = Path("/nowhere/at/all")
LONE, GRAFT = "model.safetensors", "model-graft.safetensors"


def imagined(shards: dict[str, list[str]], weight_map: list[str] | None = None) -> Checkpoint:
    """A checkpoint that no disk holds: each tensor 8 bytes, F32 [2]."""
    headers: dict[str, Header] = {}
    tensors: dict[str, TensorRef] = {}
    for file, names in shards.items():
        refs = [TensorRef(n, "F32", (2,), NOWHERE / file, 104 + 8 * i, 8) for i, n in enumerate(names)]
        headers[file] = Header({ref.name: ref for ref in refs}, {"format": "pt"}, 104)
        tensors |= headers[file].tensors
    index = None
    if len(shards) > 1:
        order = weight_map or list(tensors)
        homes = {name: tensors[name].path.name for name in order}
        index = Document.of({"metadata": {"total_size": 8 * len(tensors)}, "weight_map": homes})
        tensors = {name: tensors[name] for name in order}
    return Checkpoint(NOWHERE, tensors, headers, index, Document.of({"model_type": "x"}), {})


def two() -> Checkpoint:
    return imagined({"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]})


def stranger(name: str = "new") -> TensorRef:
    return TensorRef(name, "BF16", (3,), Path("/elsewhere/base.safetensors"), 64, 6)


def actions(plan: Plan) -> dict[str, str]:
    return {shard.name: shard.action for shard in plan.shards}


def weight_map(plan: Plan) -> dict[str, str]:
    assert plan.index is not None
    parsed: dict[str, str] = json.loads(plan.index.text)["weight_map"]
    return parsed


# Planning touches no disk


def test_a_plan_of_files_that_do_not_exist_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: object, **more: object) -> None:
        raise AssertionError(f"the disk was touched: {args}")

    draft = Draft.of(two())
    for name in ("builtins.open", "os.open", "os.stat", "os.lstat", "os.scandir", "os.listdir", "io.open"):
        monkeypatch.setattr(name, touched)
    work = Inverted(draft.origin.tensors["a"])
    draft = draft.replaced({"a": {"a.out": Computed(work, "out")}}).without(["c"])
    draft = draft.added({"new": stranger()}, GRAFT).with_config({"model_type": "y"}).noting("graft", "1 tensor")
    plan = make_plan(draft)
    monkeypatch.undo()
    assert actions(plan) == {"model-00001-of-00001.safetensors": "rewritten", GRAFT: "new"}


# What happens to a shard


def test_the_draft_that_changes_nothing_links_everything_and_keeps_every_text() -> None:
    checkpoint = two()
    plan = make_plan(Draft.of(checkpoint))
    assert set(actions(plan).values()) == {"linked"}
    assert plan.index == checkpoint.index
    assert plan.config == checkpoint.config_document
    assert (plan.bytes_read, plan.bytes_written, plan.appearing, plan.disappearing, plan.removed) == (0, 0, (), (), ())


def test_where_storage_cannot_be_shared_untouched_shards_are_copied_whole() -> None:
    plan = make_plan(Draft.of(two()), linkable=False)
    assert set(actions(plan).values()) == {"copied"}
    assert plan.bytes_read == plan.bytes_written == 2 * 104 + 3 * 8


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda d: d.without(["a"]), ["rewritten", "linked"]),
        (lambda d: d.replaced({"a": {"renamed": d.tensors["a"]}}), ["rewritten", "linked"]),
        (lambda d: d.replaced({"c": {"c": stranger("c")}}), ["linked", "rewritten"]),
        (lambda d: d.added({"new": stranger()}, "model-00002-of-00002.safetensors"), ["linked", "rewritten"]),
        (lambda d: d.added({"new": stranger()}, GRAFT), ["linked", "linked", "new"]),
        (lambda d: d.replaced({"a": {"a": d.tensors["a"]}}), ["linked", "linked"]),
        (lambda d: with_work(d, "b"), ["rewritten", "linked"]),
        (lambda d: d.with_config({}), ["linked", "linked"]),
    ],
)
def test_a_shard_is_linked_unless_what_it_holds_changes(change: Callable[[Draft], Draft], expected: list[str]) -> None:
    assert list(actions(make_plan(change(Draft.of(two())))).values()) == expected


def test_names_that_come_and_go_are_listed() -> None:
    plan = make_plan(with_work(Draft.of(two()), "b").without(["c"]).added({"new": stranger()}, GRAFT))
    assert plan.appearing == ("b.out", "b.sum", "new")
    assert plan.disappearing == ("b", "c")


def test_replacements_stand_in_the_place_of_what_they_replace() -> None:
    assert list(weight_map(make_plan(with_work(Draft.of(two()), "b")))) == ["a", "b.out", "b.sum", "c"]


def test_tensors_of_a_shard_are_aligned_to_their_elements() -> None:
    sources = {
        "odd": TensorRef("odd", "U8", (3,), NOWHERE / "x", 8, 3),
        "half": stranger(),
        "whole": TensorRef("whole", "I64", (1,), NOWHERE / "x", 16, 8),
        "packed": TensorRef("packed", "F4", (6,), NOWHERE / "x", 24, 3),
    }
    shard = make_plan(Draft.of(two()).added(sources, GRAFT)).shards[-1]
    header = parse_header(shard.header[8:], Path("x"), shard.nbytes)
    widths = {"U8": 1, "BF16": 2, "I64": 8, "F4": 1}
    assert set(header.tensors) == set(sources)
    assert all(ref.offset % widths[ref.dtype] == 0 for ref in header.tensors.values())


@pytest.mark.parametrize(
    "stored, planned",
    [
        (None, {"format": "pt"}),
        ({}, {"format": "pt"}),
        ({"format": "mlx", "author": "ü"}, {"format": "mlx", "author": "ü"}),
        ({"author": "ü"}, {"format": "pt", "author": "ü"}),
    ],
)
def test_metadata_is_kept_and_says_pt_where_it_said_nothing(stored: dict[str, str] | None, planned: object) -> None:
    checkpoint = two()
    file = "model-00001-of-00002.safetensors"
    shards = {**checkpoint.shards, file: checkpoint.shards[file]._replace(metadata=stored)}
    shard = make_plan(Draft.of(replace(checkpoint, shards=shards)).without(["a"])).shards[0]
    assert parse_header(shard.header[8:], Path("x"), shard.nbytes).metadata == planned


# Names of shards


@pytest.mark.parametrize(
    "origin, labels, expected",
    [
        (["model-00001-of-00002", "model-00002-of-00002"], ["model-00001-of-00002", "model-00002-of-00002"], {}),
        (["model-00001-of-00002", "model-00002-of-00002"], ["model-00001-of-00002", "model-00002-of-00002", "mtp"], {}),
        (["model"], ["model"], {}),
        (["model"], ["mtp", "model"], {"model": "model-00001-of-00001"}),
        (["a", "b", "c"], ["a", "c"], {}),
        (["model-00001-of-00003", "model-00002-of-00003", "model-00003-of-00003"],
         ["model-00001-of-00003", "model-00003-of-00003"],
         {"model-00001-of-00003": "model-00001-of-00002", "model-00003-of-00003": "model-00002-of-00002"}),
        (["model-00001-of-00002", "model-00002-of-00002", "mtp-00001-of-00001"],
         ["model-00001-of-00002", "model-00002-of-00002"], {}),
        (["model-00001-of-00002", "model-00002-of-00002", "mtp-00001-of-00002", "mtp-00002-of-00002"],
         ["model-00001-of-00002", "model-00002-of-00002", "mtp-00002-of-00002"],
         {"mtp-00002-of-00002": "mtp-00001-of-00001"}),
        (["model", "model-00001-of-00001"], ["model", "model-00001-of-00001"],
         {"model": "model-00001-of-00002", "model-00001-of-00001": "model-00002-of-00002"}),
    ],
)  # fmt: skip
def test_shards_are_renamed_only_where_they_must(
    origin: list[str], labels: list[str], expected: dict[str, str]
) -> None:
    def named(names: list[str]) -> list[str]:
        return [f"{name}.safetensors" for name in names]

    result = shard_names(named(labels), named(origin))
    renamed = {old: new for old, new in result.items() if old != new}
    assert renamed == {f"{old}.safetensors": f"{new}.safetensors" for old, new in expected.items()}
    assert sorted(result) == sorted(named(labels))


def test_a_lone_file_gets_a_number_and_an_index_when_a_shard_is_added() -> None:
    plan = make_plan(Draft.of(imagined({LONE: ["b", "a"]})).added({"c": stranger("c")}, GRAFT))
    first = "model-00001-of-00001.safetensors"
    assert actions(plan) == {first: "linked", GRAFT: "new"}
    assert plan.removed == (LONE,)
    assert plan.index is not None
    expected = {"metadata": {"total_size": 22}, "weight_map": {"a": first, "b": first, "c": GRAFT}}
    assert plan.index.text == json.dumps(expected, indent=2) + "\n"


def test_a_lone_file_needs_no_index_whatever_changes_in_it() -> None:
    assert make_plan(Draft.of(imagined({LONE: ["a", "b"]})).without(["a"])).index is None
    assert make_plan(Draft.of(imagined({"any.safetensors": ["a", "b"]})).without(["a"])).index is None


def test_a_lone_file_of_a_new_name_is_found_by_an_index() -> None:
    draft = Draft.of(imagined({LONE: ["a"]})).without(["a"]).added({"c": stranger("c")}, GRAFT)
    assert weight_map(make_plan(draft)) == {"c": GRAFT}


def test_an_emptied_shard_vanishes_and_the_others_are_numbered_anew() -> None:
    plan = make_plan(Draft.of(two()).without(["a", "b"]))
    assert actions(plan) == {"model-00001-of-00001.safetensors": "linked"}
    assert weight_map(plan) == {"c": "model-00001-of-00001.safetensors"}
    assert set(plan.removed) == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}


# The index


def test_the_text_of_the_index_is_edited_where_it_changes_only(tmp_path: Path) -> None:
    sample(tmp_path)
    text = (
        '{ "weight_map" : {'
        + ",".join(f'\n\t\t"t{n}":   "{SHARDS[n // 3]}"' for n in range(9))
        + '\n },\r\n "metadata":{"note":"\\u00fc", "total_size" : 4.533e3 }\n}\n\n'
    )
    (tmp_path / INDEX).write_text(text, newline="")
    total = open_checkpoint(tmp_path).nbytes
    text = text.replace("4.533e3", f"{float(total):e}")
    (tmp_path / INDEX).write_text(text, newline="")
    checkpoint, draft = opened(tmp_path)
    assert checkpoint.problems == ()
    draft = draft.replaced({"t4": {"t4": draft.tensors["t4"], "t4b": stranger("t4b")}})
    plan = make_plan(draft)
    assert plan.index is not None
    expected = text.replace(f"{float(total):e}", f"{total + 6}")
    fourth = f'\n\t\t"t4":   "{SHARDS[1]}"'
    assert plan.index.text == expected.replace(fourth, f'{fourth},\n\t\t"t4b":   "{SHARDS[1]}"')
    assert make_plan(Draft.of(checkpoint)).index == checkpoint.index


def test_a_sorted_index_stays_sorted_and_another_keeps_its_order() -> None:
    shards = {"x.safetensors": ["b", "d"], "y.safetensors": ["c"]}
    new = {"e": stranger("e"), "a": stranger("a")}
    in_order = make_plan(Draft.of(imagined(shards, ["b", "c", "d"])).added(new, GRAFT))
    assert list(weight_map(in_order)) == ["a", "b", "c", "d", "e"]
    unordered = make_plan(Draft.of(imagined(shards, ["d", "b", "c"])).added(new, GRAFT))
    assert list(weight_map(unordered)) == ["d", "b", "c", "e", "a"]


@pytest.mark.parametrize(
    "metadata, expected",
    [
        ({"total_size": 1, "note": "x"}, {"total_size": 30, "note": "x"}),
        (None, {"total_size": 30}),
        ("none", {"total_size": 30}),
        ({"total_parameters": 7}, {"total_size": 30}),
    ],
)
def test_total_size_is_the_sum_of_tensor_bytes_and_stale_counts_go(metadata: object, expected: object) -> None:
    checkpoint = two()
    assert checkpoint.index is not None
    index = Document.of({**checkpoint.index.value, "metadata": metadata})
    plan = make_plan(Draft.of(replace(checkpoint, index=index)).added({"new": stranger()}, GRAFT))
    assert plan.index is not None
    assert json.loads(plan.index.text)["metadata"] == expected


def test_a_count_of_parameters_that_is_still_true_stays() -> None:
    checkpoint = two()
    assert checkpoint.index is not None
    metadata = {"total_parameters": 6, "total_size": 24}
    index = Document.of({**checkpoint.index.value, "metadata": metadata})
    draft = Draft.of(replace(checkpoint, index=index))
    same_shape = TensorRef("c", "F32", (2,), Path("/elsewhere/base"), 64, 8)
    plan = make_plan(draft.replaced({"c": {"c": same_shape}}))
    assert plan.index is not None
    assert json.loads(plan.index.text)["metadata"] == metadata


def test_what_an_index_lacked_is_there_afterwards(tmp_path: Path) -> None:
    edit_json(sample(tmp_path) / INDEX, lambda index: index.pop("metadata"))
    checkpoint, draft = opened(tmp_path)
    assert [problem.code for problem in checkpoint.problems] == ["index-incomplete"]
    plan = make_plan(draft)
    assert plan.index is not None
    assert json.loads(plan.index.text)["metadata"] == {"total_size": checkpoint.nbytes}


# What it costs, in numbers (that apply keeps to them is shown in test_apply)


def test_a_work_is_read_once_however_many_outputs_it_has_and_a_tensor_as_often_as_it_is_stored() -> None:
    draft = Draft.of(two())
    assert make_plan(with_work(draft, "a")).bytes_read == 16
    assert make_plan(draft.replaced({"a": {"a": draft.tensors["a"], "copy": draft.tensors["a"]}})).bytes_read == 24
    work = Inverted(draft.origin.tensors["a"])
    spread = draft.replaced({"a": {"out": Computed(work, "out")}}).added({"sum": Computed(work, "sum")}, GRAFT)
    assert make_plan(spread).bytes_read == 8 + 8 + 8


def test_memory_grows_with_workers_and_the_largest_block() -> None:
    plan = make_plan(with_work(Draft.of(two()), "a", step=50_000_000))
    header = max(len(shard.header) for shard in plan.shards)
    assert plan.memory(1) == 100_000_000 + header + HASHING
    assert plan.memory(3) == 300_000_000 + header + HASHING


# Refusals


def test_the_problems_of_all_operations_are_told_together() -> None:
    first, second, third = (Problem(f"code-{n}", f"problem {n}") for n in range(3))
    draft = Draft.of(two()).refusing([first, second]).without(["a"]).refusing([third])
    with pytest.raises(Refused) as caught:
        make_plan(draft)
    assert caught.value.problems == (first, second, third)
    assert str(caught.value).splitlines()[0] == "refused, nothing was written: 3 problems"


def test_a_draft_that_holds_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="nothing is left"):
        make_plan(Draft.of(two()).without(["a", "b", "c"]))


def test_a_tensor_is_not_added_over_another() -> None:
    with pytest.raises(ValueError, match="has a already"):
        Draft.of(two()).added({"a": stranger("a")}, GRAFT)


def test_a_shard_does_not_take_the_name_of_a_stray(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, entries(), {}, shards=1)
    (tmp_path / "model-00001-of-00001.safetensors").rename(tmp_path / LONE)
    (tmp_path / INDEX).unlink()
    write_shard(tmp_path / "model-00001-of-00001.safetensors", {})
    _, draft = opened(tmp_path)
    assert actions(make_plan(draft)) == {LONE: "linked"}
    with pytest.raises(Refused, match="would take the place of another file"):
        make_plan(draft.added({"new": stranger()}, GRAFT))


def test_a_header_beyond_the_limit_is_refused() -> None:
    name = "n" * 60_000_000
    with pytest.raises(Refused, match="header of"):
        make_plan(Draft.of(two()).added({f"{name}1": stranger(), f"{name}2": stranger()}, GRAFT))
