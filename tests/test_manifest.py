"""What ckpt.manifest.json says of a folder that was written: hashes, inputs, operations, where each tensor is from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import INDEX
from drafting import SHARDS, Inverted, contents, opened, sample, tensors_of, with_work, without_exchange, write

from checkpoint import Draft, Refused, apply_plan, open_checkpoint, plan_for
from checkpoint.folder import MANIFEST
from checkpoint.manifest import Manifest, Provenance, differences, read_manifest, traced
from schemas import validate

Operation = Callable[[Draft], Draft]


def manifest_of(folder: Path) -> Manifest:
    found = read_manifest(folder)
    assert found is not None
    assert validate(json.loads((folder / MANIFEST).read_text()), "manifest") == []
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def changed(folder: Path, target: Path | None, **more: Any) -> Path:
    """One shard rewritten with work and a dropped tensor, one linked, one gone."""
    draft = with_work(opened(folder)[1], "t0").without(["t1", "t6", "t7", "t8"])
    draft = draft.with_config({"model_type": "llama"}).noting("edit", "one thing", {"dropped": ["t1"]})
    return apply_plan(plan_for(draft, target), target, **more).root


def first_origin(folder: Path, tensor: str) -> dict[str, Any]:
    origin = traced(manifest_of(folder), open_checkpoint(folder).tensors[tensor])[0]
    return {"how": origin.how, "operation": origin.operation, "place": origin.place, "tensor": origin.tensor}


# What was written


def test_every_file_is_there_with_its_size_and_hash(source: Path, target: Path) -> None:
    changed(source, target)
    manifest = manifest_of(target)
    files = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.name != MANIFEST}
    told = {**manifest.files, **manifest.shards}
    assert told.keys() == {name for name, path in files.items() if path.is_file()}
    assert {name: entry["bytes"] for name, entry in told.items()} == {n: files[n].stat().st_size for n in told}
    read = {name for name, shard in manifest.shards.items() if shard["action"] != "linked"} | manifest.files.keys()
    assert {name: told[name]["sha256"] for name in read} == {n: sha256(files[n].read_bytes()) for n in read}


def test_every_tensor_that_was_written_has_the_hash_of_its_bytes(source: Path, target: Path) -> None:
    changed(source, target)
    rows = manifest_of(target).rows("model-00001-of-00002.safetensors")
    expected = {name: sha256(data) for name, (_, _, data) in tensors_of(target).items()}
    assert rows.keys() == {"t0.out", "t0.sum", "t2"}
    assert {name: row[0] for name, row in rows.items()} == {name: expected[name] for name in rows}


def test_a_header_is_hashed_up_to_the_data(source: Path, target: Path) -> None:
    changed(source, target)
    for name, shard in manifest_of(target).shards.items():
        raw = (target / name).read_bytes()
        assert shard["header"] == sha256(raw[: 8 + int.from_bytes(raw[:8], "little")])


def test_a_shard_that_was_linked_is_not_read_and_its_hash_is_not_known(source: Path, target: Path) -> None:
    changed(source, target)
    shard = manifest_of(target).shards["model-00002-of-00002.safetensors"]
    assert (shard["action"], shard["sha256"]) == ("linked", None)
    assert "tensors" not in shard


def test_without_hashing_the_hashes_of_shards_are_null(source: Path, target: Path) -> None:
    changed(source, target, hashing=False)
    manifest = manifest_of(target)
    assert {shard["sha256"] for shard in manifest.shards.values()} == {None}
    assert {row[0] for row in manifest.rows("model-00001-of-00002.safetensors").values()} == {None}
    assert differences(manifest, target).problems == ()


def test_files_say_where_they_are_from_and_whether_they_were_edited(source: Path, target: Path) -> None:
    changed(source, target)
    files = manifest_of(target).files
    assert files["config.json"]["edited"]
    assert files[INDEX]["edited"]
    side = next(name for name in files if name not in ("config.json", INDEX))
    assert not files[side]["edited"]
    assert {name: entry["from"] for name, entry in files.items()} == {n: {"input": 0, "file": n} for n in files}


# What it was made of


def test_the_source_is_described_by_its_documents_and_headers(source: Path, target: Path) -> None:
    changed(source, target)
    (told,) = manifest_of(target).document["inputs"]
    assert (told["role"], told["place"], told["revision"], told["manifest"]) == ("source", "source", None, None)
    assert told["config"] == sha256((source / "config.json").read_bytes())
    assert told["index"] == sha256((source / INDEX).read_bytes())
    assert {name: shard["bytes"] for name, shard in told["shards"].items()} == {
        name: (source / name).stat().st_size for name in SHARDS
    }


def test_a_tensor_that_stays_and_one_that_is_computed(source: Path, target: Path) -> None:
    changed(source, target)
    assert first_origin(target, "t2") == {"how": "kept", "operation": None, "place": "source", "tensor": "t2"}
    assert first_origin(target, "t0.out") == {
        "how": "recomputed",
        "operation": "edit",
        "place": "source",
        "tensor": "t0",
    }


def test_a_tensor_that_another_checkpoint_gave(source: Path, target: Path, tmp_path: Path) -> None:
    donor = open_checkpoint(sample(tmp_path / "donor"))
    taken = {"new": donor.tensors["t3"]}
    draft = opened(source)[1].added(taken, "model-new.safetensors").noting("take", "one", sources={"from": donor})
    write(draft, target)
    manifest = manifest_of(target)
    assert [(one["role"], one["place"]) for one in manifest.document["inputs"]] == [
        ("source", "source"),
        ("from", "donor"),
    ]
    assert first_origin(target, "new") == {"how": "kept", "operation": "take", "place": "donor", "tensor": "t3"}
    assert manifest.shards["model-new.safetensors"]["action"] == "new"


def test_a_tensor_of_a_folder_that_nobody_named(source: Path, target: Path, tmp_path: Path) -> None:
    donor = open_checkpoint(sample(tmp_path / "donor"))
    write(opened(source)[1].added({"new": donor.tensors["t3"]}, "model-new.safetensors"), target)
    told = manifest_of(target).document["inputs"][1]
    assert (told["role"], told["place"], list(told["shards"])) == ("from", "donor", [SHARDS[1]])
    assert first_origin(target, "new") == {"how": "kept", "operation": None, "place": "donor", "tensor": "t3"}


def test_each_operation_is_told_from_the_one_after_it(source: Path, target: Path) -> None:
    draft = with_work(opened(source)[1], "t0").noting("first", "")
    draft = with_work(draft, "t4").noting("second", "")
    write(draft, target)
    assert first_origin(target, "t0.out")["operation"] == "first"
    assert first_origin(target, "t4.out")["operation"] == "second"


def test_work_that_is_exchanged_for_other_work_stays_its_operations_own(source: Path, target: Path) -> None:
    """As packing is moved to a GPU once all operations are done."""
    draft = with_work(opened(source)[1], "t0").noting("first", "")
    again = {
        n: replace(s, work=replace(s.work, step=8)) if isinstance(getattr(s, "work", None), Inverted) else s
        for n, s in draft.tensors.items()
    }
    write(replace(draft, tensors=again), target)
    assert first_origin(target, "t0.out")["operation"] == "first"


def test_a_tensor_that_another_tool_calibrated(source: Path, target: Path) -> None:
    draft = opened(source)[1].noting("gptq-like", "", calibrated=frozenset({"t0", "t3"})).without(["t1"])
    write(draft, target)
    assert first_origin(target, "t0")["how"] == "calibrated"  # in a shard that was rewritten
    assert first_origin(target, "t3")["how"] == "calibrated"  # in one that was not read
    assert first_origin(target, "t2")["how"] == "kept"


def test_the_command_and_the_recipe_are_those_of_the_caller(source: Path, target: Path) -> None:
    changed(source, target, provenance=Provenance(("ckpt", "edit", "source"), {"name": "r", "says": {"title": "R"}}))
    run = manifest_of(target).run
    assert run["command"] == ["ckpt", "edit", "source"]
    assert run["recipe"] == {"name": "r", "says": {"title": "R"}}
    assert run["tool"]["name"] == "ckpt-surgery"


def test_the_same_plan_gives_the_same_bytes_whatever_the_number_of_threads(source: Path, tmp_path: Path) -> None:
    made = [changed(source, tmp_path / f"target{workers}", workers=workers) for workers in (1, 2, 5)]
    assert len({(folder / MANIFEST).read_bytes() for folder in made}) == 1


def test_it_says_nothing_of_where_folders_lie(source: Path, target: Path, tmp_path: Path) -> None:
    changed(source, target)
    assert str(tmp_path) not in (target / MANIFEST).read_text()


def test_a_plan_alone_writes_none(source: Path, target: Path) -> None:
    plan_for(with_work(opened(source)[1], "t0"), target)
    assert not target.exists()


def test_shards_that_cannot_be_shared_are_copied_and_hashed(source: Path, target: Path) -> None:
    from checkpoint import make_plan

    apply_plan(make_plan(opened(source)[1].without(["t0"]), linkable=False), target)
    manifest = manifest_of(target)
    assert {name: shard["action"] for name, shard in manifest.shards.items()} == dict(
        zip(SHARDS, ("rewritten", "copied", "copied"), strict=True)
    )
    assert {n: s["sha256"] for n, s in manifest.shards.items()} == {
        n: sha256((target / n).read_bytes()) for n in SHARDS
    }


# What came before


def test_hashes_and_origins_of_a_linked_shard_are_carried_over(source: Path, tmp_path: Path) -> None:
    first, second = changed(source, tmp_path / "first"), tmp_path / "second"
    write(opened(first)[1].without(["t3"]).noting("drop", "t3"), second)
    before, after = manifest_of(first), manifest_of(second)
    name = "model-00001-of-00002.safetensors"
    assert after.shards[name]["action"] == "linked"
    assert after.shards[name]["sha256"] == before.shards[name]["sha256"] == sha256((second / name).read_bytes())
    assert {n: row[0] for n, row in after.rows(name).items()} == {n: row[0] for n, row in before.rows(name).items()}
    assert [run["operations"] for run in after.document["runs"]] == [[0], [1]]
    chain = traced(after, open_checkpoint(second).tensors["t0.out"])
    assert [(one.how, one.operation, one.place) for one in chain] == [
        ("kept", None, "first"),
        ("recomputed", "edit", "source"),
    ]


def test_the_past_of_a_tensor_in_a_rewritten_shard_is_kept(source: Path, tmp_path: Path) -> None:
    first, second = changed(source, tmp_path / "first"), tmp_path / "second"
    write(opened(first)[1].without(["t2"]).noting("drop", "t2"), second)
    chain = traced(manifest_of(second), open_checkpoint(second).tensors["t0.out"])
    assert [(one.how, one.operation, one.place) for one in chain] == [
        ("kept", None, "first"),
        ("recomputed", "edit", "source"),
    ]


def test_a_shard_of_another_size_is_not_the_one_that_was_told_of(source: Path, tmp_path: Path) -> None:
    first, second = changed(source, tmp_path / "first"), tmp_path / "second"
    name = "model-00001-of-00002.safetensors"
    shutil.copy(source / SHARDS[0], first / name)
    (first / INDEX).unlink()
    (first / "model-00002-of-00002.safetensors").unlink()
    write(opened(first)[1], second)
    shard = manifest_of(second).shards[name]
    assert shard["sha256"] is None
    assert "tensors" not in shard


def test_a_tensor_whose_hash_is_another_now_has_no_past(source: Path, tmp_path: Path) -> None:
    first, second = changed(source, tmp_path / "first"), tmp_path / "second"
    ref = open_checkpoint(first).tensors["t2"]
    assert isinstance(ref.path, Path)
    with ref.path.open("r+b") as file:
        file.seek(ref.offset)
        file.write(b"?" * ref.nbytes)
    write(opened(first)[1].without(["t0.sum"]), second)
    tensors, manifest = open_checkpoint(second).tensors, manifest_of(second)
    assert [one.place for one in traced(manifest, tensors["t2"])] == ["first"]
    assert [one.place for one in traced(manifest, tensors["t0.out"])] == ["first", "source"]


def test_the_histories_of_two_inputs_stand_beside_one_another(source: Path, tmp_path: Path) -> None:
    first, other = changed(source, tmp_path / "first"), changed(source, tmp_path / "other")
    donor, second = open_checkpoint(other), tmp_path / "second"
    taken = {"new": donor.tensors["t0.out"]}
    write(opened(first)[1].added(taken, "model-new.safetensors").noting("take", "", sources={"from": donor}), second)
    manifest = manifest_of(second)
    assert len(manifest.document["runs"]) == 3
    assert [one["run"] for one in manifest.document["inputs"]] == [None, None, 0, 1]
    chain = traced(manifest, open_checkpoint(second).tensors["new"])
    assert [(one.operation, one.place) for one in chain] == [("take", "other"), ("edit", "source")]


def test_a_manifest_that_is_none_is_told_and_not_taken_up(source: Path, target: Path) -> None:
    (source / MANIFEST).write_text('{"manifest": 1}')
    changed(source, target)
    manifest = manifest_of(target)
    assert manifest.document["inputs"][0]["manifest"] == "invalid"
    assert len(manifest.document["runs"]) == 1


def test_records_of_the_source_are_no_side_files(source: Path, target: Path) -> None:
    for name in (MANIFEST, "model.sig", "ckpt.report.json"):
        (source / name).write_text("{}")
    assert not {MANIFEST, "model.sig", "ckpt.report.json"} & open_checkpoint(source).side_files.keys()
    changed(source, target)
    assert {path.name for path in target.iterdir()} & {MANIFEST, "model.sig", "ckpt.report.json"} == {MANIFEST}


# In place


def test_in_place_the_manifest_replaces_the_old_one_and_a_signature_goes(way: str, root: Path) -> None:
    changed(root, None)
    (root / "model.sig").write_text("of what was")
    before = manifest_of(root)
    write(opened(root)[1].without(["t3"]).noting("drop", "t3"), root.parent / "elsewhere")
    apply_plan(plan_for(opened(root)[1].without(["t3"]).noting("drop", "t3"), None), None)
    assert manifest_of(root).shards == manifest_of(root.parent / "elsewhere").shards
    assert len(manifest_of(root).document["runs"]) == len(before.document["runs"]) + 1
    assert not (root / "model.sig").exists()
    assert differences(manifest_of(root), root).problems == ()


def test_what_stands_beside_in_place_is_listed_unread(root: Path) -> None:
    changed(root, None)
    assert manifest_of(root).files["stray.safetensors"]["sha256"] is None
    assert "own.txt" in manifest_of(root).files


def test_a_refused_run_leaves_the_manifest_as_it_was(way: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(root, None)
    before, files = (root / MANIFEST).read_bytes(), contents(root)
    with pytest.raises(Refused):
        apply_plan(plan_for(opened(root)[1].without(open_checkpoint(root).tensors), None), None)
    assert ((root / MANIFEST).read_bytes(), contents(root)) == (before, files)


def test_a_killed_exchange_gives_the_old_manifest_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from checkpoint import WriteFailed, staging

    changed(root, None)
    before, real = (root / MANIFEST).read_bytes(), os.replace

    def failing(one: Path, other: Path) -> None:
        if Path(other) == root / INDEX and Path(one).parent != root:
            monkeypatch.setattr(os, "replace", real)
            raise OSError(5, "Input/output error")
        real(one, other)

    monkeypatch.setattr(staging, "_exchange", without_exchange)
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(WriteFailed):
        apply_plan(plan_for(opened(root)[1].without(["t3"]), None), None)
    assert (root / MANIFEST).read_bytes() == before


# What may be added


def test_waivers_and_a_verdict_are_added_and_not_carried_into_the_next_write(source: Path, tmp_path: Path) -> None:
    from verify import Waiver

    first = changed(source, tmp_path / "first")
    told = manifest_of(first).with_waivers([Waiver("F10", None, "the Hub writes the index")])
    told = told.with_verdict(level="full", counts={"error": 0, "warning": 1}, engines=["vllm"], base="hf://o/n@abc")
    told.write(first)
    read = manifest_of(first)
    assert read.document["waivers"] == [{"rule": "F10", "place": None, "reason": "the Hub writes the index"}]
    assert read.document["verdict"]["counts"] == {"error": 0, "warning": 1}
    assert differences(read, first).problems == ()
    write(opened(first)[1].without(["t3"]), tmp_path / "second")
    assert not {"waivers", "verdict"} & manifest_of(tmp_path / "second").document.keys()


def test_a_side_file_that_was_edited_is_told_as_it_is_now(source: Path, target: Path) -> None:
    changed(source, target)
    (target / "README.md").write_text("# A card\n")
    told = manifest_of(target).with_file("README.md", b"# A card\n")
    told.write(target)
    entry = manifest_of(target).files["README.md"]
    assert (entry["sha256"], entry["edited"]) == (sha256(b"# A card\n"), True)
    assert differences(manifest_of(target), target).problems == ()


# The published operations


@pytest.fixture(scope="module")
def built(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """quantize, then graft-mtp, then int8-head, each a run of its own."""
    from surgery import graft_mtp, int8_head, load_preset, quantize

    room, base = tmp_path_factory.mktemp("built"), open_checkpoint(qwen_moe_base)
    experts = load_preset("experts-int4-g32")
    steps: list[tuple[str, Operation]] = [
        ("quantized", partial(quantize, groups=experts.groups)),
        ("grafted", partial(graft_mtp, base=base)),
        ("headed", int8_head),
    ]
    folder = qwen_moe_base
    for name, operation in steps:
        write(operation(opened(folder)[1]), room / name)
        folder = room / name
    return folder


def test_three_commands_are_three_runs_with_their_parameters(built: Path, qwen_moe_base: Path) -> None:
    document = manifest_of(built).document
    assert [one["operation"] for one in document["operations"]] == ["quantize", "graft-mtp", "int8-head"]
    quantized, grafted, headed = (one["parameters"] for one in document["operations"])
    (group,) = quantized["groups"]
    assert (group["bits"], group["group_size"], group["symmetric"], quantized["maths"]) == (4, 32, True, "fp32")
    assert (grafted["prefix"], grafted["taken"]) == ("mtp.", 19)
    assert headed == {"bits": 8, "group_size": 128, "symmetric": True, "maths": "fp32"}
    assert document["operations"][1]["inputs"] == {"base": 2}
    assert [(one["role"], one["place"], one["run"]) for one in document["inputs"]] == [
        ("source", qwen_moe_base.name, None),
        ("source", "quantized", 0),
        ("base", qwen_moe_base.name, None),
        ("source", "grafted", 1),
    ]


def test_each_kind_of_tensor_is_traced_to_the_base(built: Path, qwen_moe_base: Path) -> None:
    manifest, tensors = manifest_of(built), open_checkpoint(built).tensors

    def chain(name: str) -> list[tuple[str, str | None, str]]:
        return [(one.how, one.operation, one.place) for one in traced(manifest, tensors[name])]

    base, through = qwen_moe_base.name, [("kept", None, "grafted"), ("kept", None, "quantized")]
    layer = "model.language_model.layers.0"
    assert chain("model.language_model.norm.weight") == [*through, ("kept", None, base)]
    assert chain("lm_head.weight_scale") == [("recomputed", "int8-head", "grafted"), through[1], ("kept", None, base)]
    assert chain(f"{layer}.mlp.experts.3.up_proj.weight_packed") == [*through, ("recomputed", "quantize", base)]
    assert chain("mtp.fc.weight")[-1][-1] == base
    last = traced(manifest, tensors[f"{layer}.mlp.experts.3.up_proj.weight_packed"])[-1]
    assert (last.tensor, last.part) == (f"{layer}.mlp.experts.gate_up_proj", True)
    assert last.terms == "INT4 g32, fp32 maths"
    assert last.file == open_checkpoint(qwen_moe_base).tensors[last.tensor].path.name


def test_the_tables_stay_small_beside_the_tensors(built: Path) -> None:
    manifest = manifest_of(built)
    rows = sum(len(manifest.rows(name)) for name in manifest.shards)
    assert rows == len(open_checkpoint(built).tensors)
    assert len(manifest.document["origins"]) < rows / 5


def test_no_rule_of_verify_is_bothered(built: Path, qwen_moe_base: Path) -> None:
    from verify import verify

    assert verify(built, base=qwen_moe_base, level="sample").findings == ()
