"""The MTP head from the base: its bytes, its place, the config and ignore list beside it, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
from building import Entries, edit_json, without, write_checkpoint
from qwen import CONFIG, SOUND, body_experts, config, entries, stored
from writing import assert_same_bits, change, codes, config_of, digests, drafted, tensors, written

from checkpoint import Draft, open_checkpoint
from demo.damage import drop_draft_head
from demo.shards import read_shards, save_shard, write_index
from surgery import Group, Scheme, graft_mtp, lineage_problems, quantize

EXPERTS = r"re:model.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
INDEX = "model.safetensors.index.json"
BASES = ["qwen_moe_base", "qwen_moe_f32_base"]


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest) -> Path:
    """19 fused MTP tensors in BF16, or 41 of single experts."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def export(base: Path, tmp_path: Path) -> Path:
    """Experts packed, and the head dropped as transformers drops it."""
    out = written(base, tmp_path / "export", partial(quantize, groups=[Group((EXPERTS,), Scheme(4, 32))]))
    drop_draft_head(out)
    return out


def grafting(base: Path) -> Callable[[Draft], Draft]:
    return partial(graft_mtp, base=open_checkpoint(base))


def mtp(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in state.items() if name.startswith("mtp.")}


def homes(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


def ignored(folder: Path) -> list[str]:
    found: list[str] = config_of(folder)["quantization_config"]["ignore"]
    return found


def test_every_tensor_of_the_head_is_the_bases_to_the_bit(base: Path, export: Path, tmp_path: Path) -> None:
    assert mtp(tensors(export)) == {}
    out = written(export, tmp_path / "out", grafting(base))
    found = tensors(out)
    assert len(mtp(found)) in (19, 41)
    assert_same_bits(mtp(found), mtp(tensors(base)))
    assert_same_bits({name: t for name, t in found.items() if name not in mtp(found)}, tensors(export))


def test_the_head_is_one_new_shard_and_the_others_stay_untouched(base: Path, export: Path, tmp_path: Path) -> None:
    out = written(export, tmp_path / "out", grafting(base))
    assert {homes(out)[name] for name in mtp(tensors(out))} == {"model-mtp.safetensors"}
    before = {path.name: path.read_bytes() for path in export.glob("*.safetensors")}
    assert {path.name: path.read_bytes() for path in out.glob("*.safetensors") if path.name in before} == before
    sizes = [json.loads((folder / INDEX).read_text())["metadata"]["total_size"] for folder in (export, out)]
    assert sizes[1] - sizes[0] == sum(tensor.nbytes for tensor in mtp(tensors(base)).values())


def test_a_second_graft_writes_the_same_files(base: Path, export: Path, tmp_path: Path) -> None:
    first = written(export, tmp_path / "first", grafting(base))
    second = written(first, tmp_path / "second", grafting(base))
    assert digests(second) == digests(first)


def test_grafting_twice_in_one_draft_changes_nothing_more(base: Path, export: Path, tmp_path: Path) -> None:
    once = written(export, tmp_path / "once", grafting(base))
    twice = written(export, tmp_path / "twice", grafting(base), grafting(base))
    assert digests(twice) == digests(once)


def test_a_packed_head_makes_way(base: Path, tmp_path: Path) -> None:
    targets = (r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$",)
    packed = written(base, tmp_path / "packed", partial(quantize, groups=[Group(targets, Scheme(4, 32))]))
    assert any("weight_packed" in name for name in mtp(tensors(packed)))
    out = written(packed, tmp_path / "out", grafting(base))
    assert_same_bits(mtp(tensors(out)), mtp(tensors(base)))


def test_a_replaced_head_keeps_the_name_of_the_shard_it_had_to_itself(base: Path, export: Path, tmp_path: Path) -> None:
    whole = written(export, tmp_path / "whole", grafting(base))
    (whole / "model-mtp.safetensors").rename(whole / "draft.safetensors")
    edit_json(whole / INDEX, lambda index: index.update(weight_map=_renamed(index["weight_map"])))
    change(whole, lambda state: state["mtp.norm.weight"].fill_(9), holding="mtp.norm.weight")
    out = written(whole, tmp_path / "out", grafting(base))
    assert homes(out) == homes(whole)
    assert_same_bits(mtp(tensors(out)), mtp(tensors(base)))


def _renamed(weight_map: dict[str, str]) -> dict[str, str]:
    return {n: "draft.safetensors" if f == "model-mtp.safetensors" else f for n, f in weight_map.items()}


def test_a_lone_file_is_numbered_since_engines_prefer_it_to_the_index(base: Path, export: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone"
    shutil.copytree(export, lone)
    everything: dict[str, Any] = {}
    for path, state in read_shards(lone):
        everything |= state
        path.unlink()
    save_shard(lone / "model.safetensors", everything)
    (lone / INDEX).unlink()
    out = written(lone, tmp_path / "out", grafting(base))
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    assert shards == ["model-00001-of-00001.safetensors", "model-mtp.safetensors"]
    assert homes(out).keys() == tensors(out).keys()
    assert_same_bits(mtp(tensors(out)), mtp(tensors(base)))


# config and ignore list


def test_both_spellings_replace_the_names_of_mtp_modules(tmp_path: Path) -> None:
    entries_ = ["lm_head", "mtp", "mtp.fc", "mtp.layers.0.self_attn.q_proj", "re:.*visual.*", "mtp_projector"]
    source = write_checkpoint(tmp_path / "a", _body(), config(*entries_))
    out = written(source, tmp_path / "out", grafting(_base(tmp_path)))
    assert ignored(out) == ["lm_head", "re:.*visual.*", "mtp_projector", "re:^mtp.*", "re:.*mtp.*"]


def test_spellings_that_stand_stay_where_they_are(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "a", _body(), config("re:.*mtp.*", *SOUND[:-2], "lm_head"))
    out = written(source, tmp_path / "out", grafting(_base(tmp_path)))
    assert ignored(out) == ["re:.*mtp.*", *SOUND[:-2], "lm_head", "re:^mtp.*"]


def test_the_config_declares_the_layers_again(tmp_path: Path) -> None:
    document = config(*SOUND)
    del document["text_config"]["mtp_num_hidden_layers"]
    source = write_checkpoint(tmp_path / "a", _body(), document)
    out = written(source, tmp_path / "out", grafting(_base(tmp_path)))
    assert config_of(out)["text_config"] == CONFIG["text_config"]


def test_a_dense_export_gets_no_quantization_config(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "a", without(entries(), *_head()), CONFIG)
    out = written(source, tmp_path / "out", grafting(_base(tmp_path)))
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert set(_head()) <= tensors(out).keys()


def _head() -> list[str]:
    return [name for name in entries() if name.startswith("mtp.")]


def _body() -> dict[str, Any]:
    from building import pack

    return without(pack(entries(), body_experts), *_head())


def _base(tmp_path: Path, change_: dict[str, Any] | None = None, **text: Any) -> Path:
    """The unquantized original; `change_` maps names of its tensors to entries or None, `text` goes to its config."""
    found = {name: entry for name, entry in (entries() | (change_ or {})).items() if entry is not None}
    document = CONFIG | {"text_config": CONFIG["text_config"] | text}
    return write_checkpoint(tmp_path / "base", found, document)


# refusals

Q_PROJ = "mtp.layers.0.self_attn.q_proj.weight"
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, list[str]]] = {
    "a base without a head": (dict.fromkeys(_head()), {}, "mtp-absent", ["base", "no mtp.* tensor", "--base"]),
    "a quantized head": (
        {Q_PROJ: ("F8_E4M3", (256, 128), None), "mtp.fc.weight": ("F8_E4M3", (128, 256), None)},
        {},
        "mtp-quantized",
        [Q_PROJ, "mtp.fc.weight", "dtype F8_E4M3", "unquantized base"],
    ),
    "a tensor missing": ({Q_PROJ: None}, {}, "mtp-incomplete", [Q_PROJ, "missing"]),
    "a shape that contradicts the base's config": (
        {Q_PROJ: ("BF16", (128, 128), None)},
        {},
        "mtp-shape",
        [Q_PROJ, "[128, 128]", "[256, 128] by its config"],
    ),
    "a tensor that the config does not call for": (
        {"mtp.layers.1.norm.weight": ("BF16", (128,), None)},
        {},
        "mtp-unknown",
        ["mtp.layers.1.norm.weight"],
    ),
    "a base of other sizes": ({}, {"num_experts": 4, "vocab_size": 96}, "mtp-config", ["vocab_size is 64", "96"]),
    "a config that says nothing": ({}, {"hidden_size": None}, "spec", ["hidden_size", "config.json"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_that_cannot_be_right_is_refused(case: str, tmp_path: Path) -> None:
    change_, text, code, words = REFUSED[case]
    source = write_checkpoint(tmp_path / "a", _body(), config(*SOUND))
    draft = drafted(source, grafting(_base(tmp_path, change_, **text)))
    assert code in codes(draft)
    told = "\n".join(map(str, draft.problems))
    assert [word for word in words if word not in told] == []
    assert not mtp(dict(draft.tensors))


def test_a_head_that_is_right_is_not_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "a", _body(), config(*SOUND))
    assert codes(drafted(source, grafting(_base(tmp_path)))) == []


def test_an_export_of_another_method_is_refused(tmp_path: Path) -> None:
    document = config() | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    draft = drafted(write_checkpoint(tmp_path / "a", _body(), document), grafting(_base(tmp_path)))
    assert codes(draft) == ["format-unsupported"]


def test_a_family_that_is_unknown_is_grafted_by_the_usual_prefix(tmp_path: Path) -> None:
    base = _base(tmp_path)
    source = write_checkpoint(tmp_path / "a", _body(), config(*SOUND))
    for folder in (base, source):
        edit_json(folder / "config.json", lambda document: document.update(model_type="nonesuch"))
    draft = drafted(source, grafting(base))
    assert codes(draft) == []
    assert mtp(dict(draft.tensors)).keys() == set(_head())


# lineage: does the export descend from the base?


def test_an_export_descends_from_its_base(base: Path, export: Path) -> None:
    assert lineage_problems(open_checkpoint(export), open_checkpoint(base)) == []
    assert lineage_problems(open_checkpoint(base), open_checkpoint(base)) == []


def test_keys_that_exporters_change_say_nothing_about_lineage(export: Path, base: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document.update(transformers_version="5.17.0", architectures=["Other"], added_key=1)
        document["text_config"].update(dtype="float16", use_cache=False, pad_token_id=7)
        document["text_config"].pop("mtp_num_hidden_layers")

    edit_json(export / "config.json", edit)
    assert lineage_problems(open_checkpoint(export), open_checkpoint(base)) == []


def test_another_model_is_told_by_its_config(tmp_path: Path) -> None:
    export, base = stored(tmp_path / "a"), _base(tmp_path, num_experts_per_tok=3, rms_norm_eps=1.0)
    (problem,) = lineage_problems(export, open_checkpoint(base))
    assert str(problem) == "config.json: text_config.num_experts_per_tok is 2; expected 3, as in the base"


def test_another_model_is_told_by_its_shapes(tmp_path: Path) -> None:
    changed = {f"model.visual.blocks.{n}.norm1.bias": ("BF16", (32,), None) for n in (0,)}
    (problem,) = lineage_problems(stored(tmp_path / "a"), open_checkpoint(_base(tmp_path, changed)))
    assert str(problem) == "model.visual.blocks.0.norm1.bias: shape [64]; expected [32], as in the base"


def test_a_fine_tune_is_told_by_its_content(base: Path, tmp_path: Path) -> None:
    """Of the same config and shapes; embedding, head and vision tower frozen, as they often are."""
    tuned = tmp_path / "tuned"
    shutil.copytree(base, tuned)
    for path, state in read_shards(base):
        for name, tensor in state.items():
            if ".layers." in name and tensor.ndim >= 2:
                tensor.view(-1)[:4] += 1
        save_shard(tuned / path.name, state)
    (problem,) = lineage_problems(open_checkpoint(tuned), open_checkpoint(base))
    assert problem.code == "lineage"
    assert "start with the base's bytes" in str(problem)
    assert "--any-lineage" in str(problem)
    assert lineage_problems(open_checkpoint(tuned), open_checkpoint(base), content=False) == []


def test_a_vision_tower_that_was_left_alone_does_not_outvote_what_was_trained(tmp_path: Path) -> None:
    tower = {f"model.visual.blocks.{n}.attn.qkv.weight": ("BF16", (192, 64), None) for n in range(100)}
    language = {name: entry for name, entry in entries().items() if ".visual." not in name}
    tuned: Entries = {name: (dtype, shape, b"\x80\x3f" * prod(shape)) for name, (dtype, shape, _) in language.items()}
    base = open_checkpoint(write_checkpoint(tmp_path / "base", language | tower, CONFIG))
    export = open_checkpoint(write_checkpoint(tmp_path / "export", tuned | tower, CONFIG))
    assert [problem.code for problem in lineage_problems(export, base)] == ["lineage"]
    assert lineage_problems(base, base) == []


def test_smoothing_of_some_matrices_is_no_other_lineage(base: Path, export: Path) -> None:
    """AWQ scales what follows a norm: the routers and the small projections, not most matrices."""
    shard_of: dict[str, str] = {}
    for path, state in read_shards(export):
        for name in state:
            if name.endswith((".mlp.gate.weight", "in_proj_a.weight", "in_proj_b.weight")):
                state[name] *= 1.5
        save_shard(path, state)
        shard_of |= dict.fromkeys(state, path.name)
    write_index(export, shard_of, 0)
    assert lineage_problems(open_checkpoint(export), open_checkpoint(base)) == []
