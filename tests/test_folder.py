"""A checkpoint folder as it is read: which files make it, and every way in which they can contradict each other."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from building import (
    INDEX,
    Entries,
    edit_json,
    int64s,
    llama_entries,
    write_checkpoint,
    write_index,
    write_json,
    write_raw,
    write_shard,
)
from safetensors import safe_open

from checkpoint import Checkpoint, Files, UnreadableCheckpoint, open_checkpoint, survey
from checkpoint import shelf as shelf_module

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
A, B, C, D = (Entries({name: ("I64", (2,), int64s(number, number))}) for number, name in enumerate("abcd"))


def two_shards(folder: Path) -> Path:
    """a, b in the first, c, d in the second."""
    return write_checkpoint(folder, A | B | C | D, {"model_type": "llama"})


def codes(checkpoint: Checkpoint) -> list[str]:
    return [problem.code for problem in checkpoint.problems]


def refusal(folder: Path) -> list[tuple[str, str | None, str | None]]:
    """(code, file, tensor) of all that `open_checkpoint` refuses."""
    with pytest.raises(UnreadableCheckpoint) as caught:
        open_checkpoint(folder)
    return [(problem.code, problem.file, problem.tensor) for problem in caught.value.problems]


# Reading again what is known


def test_what_is_known_is_not_read_again_and_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = open_checkpoint(two_shards(tmp_path / "m"))
    other = tmp_path / "other"
    other.mkdir()
    for name in (FIRST, SECOND):
        os.link(tmp_path / "m" / name, other / name)
    for name in (INDEX, "config.json"):
        shutil.copy(tmp_path / "m" / name, other / name)
    fresh = survey(other)
    read: list[Path] = []
    monkeypatch.setattr(shelf_module, "read_header", read.append)
    assert survey(other, known=known) == fresh
    assert read == []


def test_a_shard_that_was_written_since_is_read_again(tmp_path: Path) -> None:
    folder = two_shards(tmp_path / "m")
    known = open_checkpoint(folder)
    write_shard(folder / SECOND, C | {"e": D["d"]})
    edit_json(folder / INDEX, lambda index: index["weight_map"].update(e=index["weight_map"].pop("d")))
    assert list(survey(folder, known=known).tensors) == ["a", "b", "c", "e"]


# Which files make a checkpoint


def test_a_sharded_folder_is_read_in_the_order_of_its_index(tmp_path: Path) -> None:
    folder = two_shards(tmp_path / "m")
    edit_json(folder / INDEX, lambda index: index.update(weight_map=dict(reversed(index["weight_map"].items()))))
    checkpoint = open_checkpoint(folder)
    assert list(checkpoint.tensors) == ["d", "c", "b", "a"]
    assert list(checkpoint.shards) == [FIRST, SECOND]
    assert checkpoint.config == {"model_type": "llama"}
    assert set(checkpoint.side_files) == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert checkpoint.problems == ()
    assert checkpoint.nbytes == 4 * 16


@pytest.mark.parametrize("name", ["model.safetensors", "anything at all.safetensors"])
def test_a_single_file_needs_no_index(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / name, A | B)
    assert list(open_checkpoint(tmp_path).tensors) == ["a", "b"]


def test_shards_may_have_any_names(tmp_path: Path) -> None:
    write_shard(tmp_path / "Körper.safetensors", A)
    write_shard(tmp_path / "mtp (neu).safetensors", B)
    write_index(tmp_path, {"a": "Körper.safetensors", "b": "mtp (neu).safetensors"}, 32)
    assert codes(open_checkpoint(tmp_path)) == []


def test_a_layer_may_be_spread_over_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, llama_entries(), {}, shards=5))
    homes = {ref.path.name for name, ref in checkpoint.tensors.items() if name.startswith("model.layers.0.")}
    assert len(homes) > 1
    assert list(checkpoint.tensors) == list(llama_entries())


def test_every_tensor_is_where_safetensors_finds_it(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(two_shards(tmp_path))
    for name, ref in checkpoint.tensors.items():
        with safe_open(ref.path, "np") as file:
            stored = file.get_tensor(name)
        assert (ref.shape, Files().read_tensor(ref)) == (stored.shape, stored.tobytes())


@pytest.mark.parametrize("total", [64, 64.0])
def test_total_size_may_be_whole_or_a_float(tmp_path: Path, total: float) -> None:
    edit_json(two_shards(tmp_path) / INDEX, lambda index: index["metadata"].update(total_size=total))
    assert codes(open_checkpoint(tmp_path)) == []


def test_a_link_into_the_blobs_of_the_hub_cache_is_followed(tmp_path: Path) -> None:
    source = two_shards(tmp_path / "source")
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123abcd"
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / f"{number:064x}", snapshot))
    checkpoint = open_checkpoint(snapshot)
    assert list(checkpoint.tensors) == ["a", "b", "c", "d"]
    assert "tokenizer.json" in checkpoint.side_files
    (tmp_path / "link").symlink_to(snapshot)
    assert list(open_checkpoint(tmp_path / "link").tensors) == ["a", "b", "c", "d"]


def test_side_files_are_all_the_rest_but_tool_folders(tmp_path: Path) -> None:
    two_shards(tmp_path)
    for name in ("LICENSE", ".gitattributes", "original/params.json", "original/deep/x.safetensors", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    names = set(open_checkpoint(tmp_path).side_files) - {"tokenizer.json", "tokenizer_config.json"}
    expected = {"LICENSE", ".gitattributes", "original/params.json", "original/deep/x.safetensors"}
    assert names == expected | {"generation_config.json"}


def test_hidden_files_are_no_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", A)
    (tmp_path / "._model.safetensors").write_bytes(b"a Mac's resource fork")
    assert list(open_checkpoint(tmp_path).shards) == ["model.safetensors"]


# What is tolerated: nobody can be in doubt about what the checkpoint holds


def test_a_stray_shard_is_told_and_left_out(tmp_path: Path) -> None:
    write_shard(two_shards(tmp_path) / "old.safetensors", A)
    checkpoint = open_checkpoint(tmp_path)
    assert (codes(checkpoint), checkpoint.strays) == (["shard-unindexed"], ("old.safetensors",))
    assert checkpoint.tensors["a"].path.name == FIRST


def test_beside_a_lone_file_without_index_others_are_strays(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", A)
    write_shard(tmp_path / FIRST, A | B)
    checkpoint = open_checkpoint(tmp_path)
    assert (codes(checkpoint), list(checkpoint.tensors)) == (["shard-unindexed"], ["a"])


@pytest.mark.parametrize("total", [0, 63, "64", 64.5])
def test_a_wrong_total_size_is_told(tmp_path: Path, total: object) -> None:
    edit_json(two_shards(tmp_path) / INDEX, lambda index: index["metadata"].update(total_size=total))
    assert codes(open_checkpoint(tmp_path)) == ["total-size"]


def test_an_index_without_metadata_is_told(tmp_path: Path) -> None:
    edit_json(two_shards(tmp_path) / INDEX, lambda index: index.pop("metadata"))
    assert codes(open_checkpoint(tmp_path)) == ["index-incomplete"]


# What is refused


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda m: m.pop("b"), [("tensor-unindexed", FIRST, "b")]),
        (lambda m: m.update(e=FIRST), [("tensor-absent", INDEX, "e")]),
        (lambda m: m.update(b=SECOND), [("tensor-absent", INDEX, "b"), ("tensor-unindexed", FIRST, "b")]),
        (lambda m: m.update(b="no.safetensors"), [("shard-missing", "no.safetensors", None),
                                                  ("tensor-unindexed", FIRST, "b")]),
    ],
)  # fmt: skip
def test_an_index_that_disagrees_with_the_shards_is_refused(
    tmp_path: Path, change: Callable[[dict[str, str]], None], expected: list[tuple[str, str, str]]
) -> None:
    edit_json(two_shards(tmp_path) / INDEX, lambda index: change(index["weight_map"]))
    assert refusal(tmp_path) == expected


def test_a_tensor_in_two_shards_is_refused_and_surveyed_where_the_index_has_it(tmp_path: Path) -> None:
    write_shard(two_shards(tmp_path) / SECOND, C | D | A)
    assert ("tensor-twice", SECOND, "a") in refusal(tmp_path)
    assert survey(tmp_path).tensors["a"].path.name == FIRST


def test_shards_without_index_are_refused(tmp_path: Path) -> None:
    (two_shards(tmp_path) / INDEX).unlink()
    assert refusal(tmp_path) == [("index-missing", INDEX, None)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{", ["json-invalid"]),
        ("[]", ["json-invalid"]),
        ('{"metadata": {}}', ["index-invalid"]),
        ('{"metadata": {}, "weight_map": []}', ["index-invalid"]),
        ('{"metadata": {}, "weight_map": {}}', ["index-invalid"]),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', ["duplicate-key"]),
        ("[" * 3000 + "]" * 3000, ["json-invalid"]),
        ('{"deep": ' + "[" * 200 + "]" * 200 + "}", ["json-invalid"]),
        ("\ufeff{}", ["json-invalid"]),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str, expected: list[str]) -> None:
    (two_shards(tmp_path) / INDEX).write_text(text, encoding="utf-8")
    assert [code for code, _, _ in refusal(tmp_path)] == expected


def test_a_lone_file_beside_an_index_of_others_is_refused(tmp_path: Path) -> None:
    write_shard(two_shards(tmp_path) / "model.safetensors", A)
    assert ("lone-and-index", "model.safetensors", None) in refusal(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../out.safetensors",
        "/etc/out.safetensors",
        "sub/out.safetensors",
        "..\\out.safetensors",
        "C:out.safetensors",
        "..",
        ".hidden.safetensors",
        "",
        "new\nline.safetensors",
        "nul\0.safetensors",
        "\u202esrotcafe.safetensors",
        "x" * 300 + ".safetensors",
        "ü" * 130 + ".safetensors",
        "config.json",
        "tokenizer.json",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_a_weight_map_that_leads_anywhere_but_to_a_shard_is_refused(tmp_path: Path, name: object) -> None:
    write_shard(tmp_path / "out.safetensors", B)
    two_shards(tmp_path / "m")
    edit_json(tmp_path / "m" / INDEX, lambda index: index["weight_map"].update(b=name))
    assert ("unsafe-name", INDEX, "b") in refusal(tmp_path / "m")
    assert set(survey(tmp_path / "m").shards) == {FIRST, SECOND}


@pytest.mark.parametrize("name", [FIRST, INDEX, "config.json", "tokenizer.json"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = two_shards(tmp_path / "m") / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to("../elsewhere")
    assert ("unsafe-name", name, None) in refusal(tmp_path / "m")
    assert name not in survey(tmp_path / "m").side_files


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path: Path) -> None:
    for name in (FIRST, INDEX, "config.json", "tokenizer.json"):
        path = two_shards(tmp_path) / name
        (tmp_path / ".store").mkdir(exist_ok=True)
        path.rename(tmp_path / ".store" / name)
        path.symlink_to(f".store/{name}")
    assert codes(open_checkpoint(tmp_path)) == []


def _folder(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [_folder, os.mkfifo, _dangling, _loop])
@pytest.mark.parametrize("name", [FIRST, INDEX, "config.json"])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    path = two_shards(tmp_path) / name
    path.unlink()
    make(path)
    assert (name, None) in [(file, tensor) for _, file, tensor in refusal(tmp_path)]


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    assert [code for code, _, _ in refusal(tmp_path / "absent")] == ["no-folder"]
    (tmp_path / "file").write_text("")
    assert [code for code, _, _ in refusal(tmp_path / "file")] == ["no-folder"]
    write_json(tmp_path / "config.json", {})
    assert [code for code, _, _ in refusal(tmp_path)] == ["no-weights"]


def test_all_that_is_wrong_in_a_folder_is_told_together(tmp_path: Path) -> None:
    two_shards(tmp_path)
    write_raw(tmp_path / FIRST, "{}", b"123")
    (tmp_path / "config.json").write_text("{")
    edit_json(tmp_path / INDEX, lambda index: index["weight_map"].update(e=SECOND, f="../f", g="g.safetensors"))
    found = refusal(tmp_path)
    assert {code for code, _, _ in found} == {
        "trailing-bytes", "json-invalid", "tensor-absent", "unsafe-name", "shard-missing",
    }  # fmt: skip


# What it costs


def bytes_this_process_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_reading_one_tensor_of_a_huge_file_reads_its_bytes_and_no_others(tmp_path: Path) -> None:
    shape, nbytes = (2**20, 2**11), 2**32
    header = {
        "big.0": {"dtype": "BF16", "shape": shape, "data_offsets": [0, nbytes]},
        "small": {"dtype": "I64", "shape": [2], "data_offsets": [nbytes, nbytes + 16]},
        "big.1": {"dtype": "BF16", "shape": shape, "data_offsets": [nbytes + 16, 2 * nbytes + 16]},
    }
    path = tmp_path / "model.safetensors"
    write_raw(path, header, b"")
    start = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(start + 2 * nbytes + 16)
        file.seek(start + nbytes)
        file.write(int64s(5, 6))
    before = bytes_this_process_read()
    checkpoint = open_checkpoint(tmp_path)
    with Files() as files:
        assert files.read_tensor(checkpoint.tensors["small"]) == int64s(5, 6)
    assert bytes_this_process_read() - before < 100_000


def test_opening_many_tensors_takes_little_more_than_parsing_their_json(tmp_path: Path) -> None:
    entries: Entries = {f"model.layers.{n}.weight_packed": ("I32", (0, 64), None) for n in range(20_000)}
    write_checkpoint(tmp_path, entries, {}, shards=4)
    headers = [path.read_bytes()[8:] for path in tmp_path.glob("*.safetensors")]
    texts = [*headers, (tmp_path / INDEX).read_bytes()]

    def fastest(action: Callable[[], object]) -> float:
        def once() -> float:
            start = time.process_time()
            action()
            return time.process_time() - start

        return min(once() for _ in range(3))

    assert fastest(lambda: open_checkpoint(tmp_path)) < 6 * fastest(lambda: [json.loads(text) for text in texts])


def test_files_hold_few_handles_however_many_are_read(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}").write_bytes(bytes([number]))
    with Files(limit=3) as files:
        before = len(os.listdir("/proc/self/fd"))
        assert [files.read(tmp_path / f"{number}", 0, 1)[0] for number in range(9)] == list(range(9))
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_ends_early_or_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with Files() as files:
        with pytest.raises(UnreadableCheckpoint, match="ends at byte 3; expected 4"):
            files.read(tmp_path / "x", 1, 3)
        with pytest.raises(UnreadableCheckpoint, match="No such file"):
            files.read(tmp_path / "y", 0, 1)
