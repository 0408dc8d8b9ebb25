"""Taking tensors from another checkpoint: what is taken, where it goes, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import (
    LLAMA,
    Entries,
    dense_llama,
    is_layer_linear,
    llama_entries,
    pack,
    packed_llama,
    quantization,
    write_checkpoint,
    write_json,
    write_shard,
)
from qwen import body_experts, config, entries
from writing import assert_same_bits, codes, config_of, drafted, tensors, written

from checkpoint import Checkpoint, open_checkpoint
from surgery import Bound, graft

NORM = "model.layers.0.input_layernorm.weight"


def donor(folder: Path, **change: Any) -> Checkpoint:
    """A Llama like `building`'s with ones for data; keyword arguments with dots as `__` change or add tensors."""
    found = llama_entries() | {name.replace("__", "."): entry for name, entry in change.items()}
    return open_checkpoint(write_checkpoint(folder, _ones(found), LLAMA))


def _ones(found: Entries) -> Entries:
    """BF16 1.0 in every element."""
    return {n: (d, s, b"\x80\x3f" * _elements(s)) if d == "BF16" else (d, s, None) for n, (d, s, _) in found.items()}


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_a_tensor_is_replaced_where_it_stands_and_other_shards_stay(tmp_path: Path) -> None:
    source = dense_llama(tmp_path / "a")
    out = written(source, tmp_path / "out", partial(graft, source=donor(tmp_path / "b"), patterns=[NORM]))
    found, before = tensors(out), tensors(source)
    assert found[NORM].eq(1).all()
    assert_same_bits({**found, NORM: before[NORM]}, before)
    index = [json.loads((folder / "model.safetensors.index.json").read_text()) for folder in (source, out)]
    assert index[0] == index[1]
    changed = [
        path.name for path in out.glob("*.safetensors") if path.read_bytes() != (source / path.name).read_bytes()
    ]
    assert changed == ["model-00001-of-00002.safetensors"]


def test_a_new_tensor_goes_to_a_shard_of_its_own(tmp_path: Path) -> None:
    source = dense_llama(tmp_path / "a")
    donated = donor(tmp_path / "b", extra__weight=("F32", (3,), None), extra__bias=("BF16", (3,), None))
    out = written(source, tmp_path / "out", partial(graft, source=donated, patterns=[r"re:extra\."]))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["extra.weight"] == index["weight_map"]["extra.bias"] == "model-graft.safetensors"
    before = json.loads((source / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == before["metadata"]["total_size"] + 12 + 6
    assert tensors(out)["extra.weight"].dtype == tensors(donated.root)["extra.weight"].dtype


def test_a_second_graft_joins_the_shard_of_the_first(tmp_path: Path) -> None:
    donated = donor(tmp_path / "b", one__weight=("F32", (3,), None), two__weight=("F32", (3,), None))
    first = written(
        dense_llama(tmp_path / "a"), tmp_path / "c", partial(graft, source=donated, patterns=["one.weight"])
    )
    second = written(first, tmp_path / "d", partial(graft, source=donated, patterns=["two.weight"]))
    assert {"one.weight", "two.weight"} <= tensors_in(second / "model-graft.safetensors")


def test_a_file_that_lies_unindexed_in_the_folder_is_not_taken_for_the_graft(tmp_path: Path) -> None:
    source = dense_llama(tmp_path / "a")
    write_shard(source / "model-graft.safetensors", {"stale.weight": ("F32", (1,), None)})
    donated = donor(tmp_path / "b", extra__weight=("F32", (3,), None))
    draft = drafted(source, partial(graft, source=donated, patterns=["extra.weight"]))
    assert draft.placement["extra.weight"] == "model-graft-2.safetensors"


def tensors_in(path: Path) -> set[str]:
    with path.open("rb") as file:
        return set(json.loads(file.read(int.from_bytes(file.read(8), "little"))))


def test_a_vision_tower_is_grafted_and_joins_the_ignore_list(tmp_path: Path) -> None:
    """Engines would build its blocks packed, since `Linear` covers them."""
    whole = entries()
    lost = pack({name: entry for name, entry in whole.items() if ".visual." not in name}, body_experts)
    list_ = [r"re:.*self_attn.*", r"re:.*linear_attn.*", r"re:.*mlp\.gate$", r"re:.*shared_expert.*"]
    source = write_checkpoint(tmp_path / "a", lost, config(*list_, "re:.*mtp.*", "lm_head"))
    base = open_checkpoint(write_checkpoint(tmp_path / "b", whole, config() | {"quantization_config": None}))
    out = written(source, tmp_path / "out", partial(graft, source=base, patterns=["re:model.visual.*"]))
    assert {name for name in whole if ".visual." in name} <= tensors(out).keys()
    assert config_of(out)["quantization_config"]["ignore"] == [*list_, "re:.*mtp.*", "lm_head", "re:.*visual.*"]


def test_a_norm_leaves_the_config_as_it_is_even_where_it_lacks_entries(tmp_path: Path) -> None:
    source = packed_llama(tmp_path / "a")
    write_json(source / "config.json", LLAMA | {"quantization_config": quantization()})
    out = written(source, tmp_path / "out", partial(graft, source=donor(tmp_path / "b"), patterns=[NORM]))
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()


# refusals


def refused(source: Path, donated: Checkpoint, *patterns: str, **options: Any) -> tuple[list[str], str]:
    draft = drafted(source, partial(graft, source=donated, patterns=patterns, **options))
    return codes(draft), "\n".join(map(str, draft.problems))


def test_patterns_that_match_nothing_or_are_invalid_are_refused(tmp_path: Path) -> None:
    source, donated = dense_llama(tmp_path / "a"), donor(tmp_path / "b")
    found, text = refused(source, donated, NORM, r"re:.*rotary\.x$", "model.layers.0.input_layernorm")
    assert found == ["pattern-unmatched"]
    assert r"'re:.*rotary\.x$' matches no tensor" in text
    assert "'model.layers.0.input_layernorm' matches no tensor" in text
    assert refused(source, donated, "re:(")[0] == ["pattern-invalid"]


def test_a_graft_larger_than_declared_is_refused(tmp_path: Path) -> None:
    source, donated = dense_llama(tmp_path / "a"), donor(tmp_path / "b")
    everything = sum(ref.nbytes for ref in donated.tensors.values())
    found, text = refused(source, donated, "re:.*", bound=Bound(20, everything))
    assert found == ["graft-too-large"]
    assert f"21 tensors, {everything:,} bytes; expected at most 20 tensors" in text
    assert refused(source, donated, "re:.*", bound=Bound(21, everything - 1))[0] == ["graft-too-large"]
    assert refused(source, donated, "re:.*", bound=Bound(21, everything))[0] == []


def test_another_shape_is_refused(tmp_path: Path) -> None:
    donated = donor(tmp_path / "b", model__norm__weight=("BF16", (64,), None))
    found, text = refused(dense_llama(tmp_path / "a"), donated, "re:.*norm.weight$")
    assert found == ["shape-differs"]
    assert "model.norm.weight: shape [64]; expected [128], as in the export" in text


def donors(tmp_path: Path) -> Mapping[str, Checkpoint]:
    plain = entries()
    single = pack(plain, body_experts)
    folders = {"fused": write_checkpoint(tmp_path / "f", plain), "single": write_checkpoint(tmp_path / "s", single)}
    packed = pack(llama_entries(), is_layer_linear)
    folders |= {
        "packed": write_checkpoint(tmp_path / "p", packed),
        "dense": write_checkpoint(tmp_path / "d", llama_entries()),
    }
    return {name: open_checkpoint(folder) for name, folder in folders.items()}


@pytest.mark.parametrize(
    "export, taken, pattern, found",
    [
        (
            "packed",
            "dense",
            r"re:.*up_proj\.weight$",
            "model.layers.{0-1}.mlp.up_proj.weight: the export has it packed",
        ),
        ("dense", "packed", r"re:.*up_proj\.weight_scale$", "weight_scale: the export has it dense"),
        ("single", "fused", r"re:model.*experts\.gate_up_proj$", "gate_up_proj: the export has it expert by expert"),
        ("fused", "single", r"re:model.*experts\.0\.up_proj\..*", "the export has it in a fused parameter"),
    ],
)
def test_a_weight_that_the_export_has_in_another_form_is_refused(
    export: str, taken: str, pattern: str, found: str, tmp_path: Path
) -> None:
    known = donors(tmp_path)
    source = known[export].root
    write_json(source / "config.json", config() if export in ("single", "fused") else LLAMA)
    problems, text = refused(source, known[taken], pattern)
    assert problems == ["stored-otherwise"]
    assert found in text
    shutil.copy(source / "config.json", known[taken].root)
    assert refused(known[taken].root, known[taken], pattern)[0] == []


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    donated = donor(tmp_path / "b", model__norm__weight=("BF16", (64,), None))
    found, _ = refused(packed_llama(tmp_path / "a"), donated, "re:.*weight$", "re:nonesuch", bound=Bound(1))
    assert found == ["pattern-unmatched", "graft-too-large", "shape-differs", "stored-otherwise"]


def test_a_shard_name_with_a_path_in_it_is_a_programming_error(tmp_path: Path) -> None:
    donated = donor(tmp_path / "b", extra__weight=("F32", (3,), None))
    source = dense_llama(tmp_path / "a")
    for shard in ("../x.safetensors", "config.json"):
        with pytest.raises(ValueError, match="plain file name"):
            drafted(source, partial(graft, source=donated, patterns=["extra.weight"], shard=shard))
