"""What an exporter leaves undone: a damaged export comes back as it was before the damage."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from writing import assert_same_bits, change, codes, config_of, tensors, written  # noqa: E402

from checkpoint import Draft, Refused, apply_plan, open_checkpoint, plan_for  # noqa: E402
from demo import damage  # noqa: E402
from demo.shards import read_shards, save_shard, write_index  # noqa: E402
from surgery import (  # noqa: E402
    Scheme,
    compare_dense,
    fixup,
    int8_head,
    keep_dense,
    lineage_problems,
    load_preset,
    quantize,
)
from verify import verify  # noqa: E402

NORM = "model.language_model.layers.1.input_layernorm.weight"
BUILDS = [
    (base, preset)
    for base in ("qwen_moe_base", "qwen_moe_f32_base")
    for preset in ("experts-int4-g32", "body-int4-g128")
]


@dataclass(frozen=True)
class Export:
    base: Path
    sound: Path
    damaged: Path


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A build with the MTP head dense, as made here and as an exporter would have left it."""
    base_name, preset_name = request.param
    base, work = request.getfixturevalue(base_name), tmp_path_factory.mktemp("export")
    preset = load_preset(preset_name)
    packing = partial(quantize, groups=preset.groups, ignore=[*preset.ignore, "re:mtp.*"])
    sound = written(base, work / "sound", packing)
    shutil.copytree(sound, work / "damaged")
    damage.damage_export(work / "damaged")
    return Export(base, sound, work / "damaged")


def fixed(source: Path, base: Path, out: Path, *, keep: tuple[str, ...] = (), **options: object) -> Path:
    draft = fixup_draft(source, base, keep=keep, **options)
    return apply_plan(plan_for(draft, out), out).root


def fixup_draft(source: Path, base: Path, *, keep: tuple[str, ...] = (), **options: object) -> Draft:
    origin, original = open_checkpoint(source), open_checkpoint(base)
    assert lineage_problems(origin, original) == []
    differences = keep_dense(compare_dense(origin, original), keep)
    return fixup(Draft.of(origin), original, differences, **options)  # type: ignore[arg-type]


def side_files(folder: Path) -> dict[str, bytes]:
    skipped = ("model.safetensors.index.json", "ckpt.manifest.json")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".safetensors" and p.name not in skipped}


def test_a_damaged_export_becomes_what_it_was_in_every_tensor_and_every_file(export: Export, tmp_path: Path) -> None:
    out = fixed(export.damaged, export.base, tmp_path / "out")
    assert_same_bits(tensors(out), tensors(export.sound))
    assert side_files(out) == side_files(export.sound)


def test_the_damage_was_there_and_verify_sees_it_gone(export: Export, tmp_path: Path) -> None:
    def errors(folder: Path) -> set[str]:
        findings = verify(folder, base=export.base, level="full").findings
        return {finding.rule for finding in findings if finding.severity == "error"}

    assert errors(export.damaged)
    assert errors(fixed(export.damaged, export.base, tmp_path / "out")) == set()


def test_a_sound_export_keeps_every_tensor_and_every_file(export: Export, tmp_path: Path) -> None:
    out = fixed(export.sound, export.base, tmp_path / "out")
    assert_same_bits(tensors(out), tensors(export.sound))
    assert side_files(out) == side_files(export.sound)


def test_the_head_is_packed_in_the_same_write_where_asked(export: Export, tmp_path: Path) -> None:
    out = fixed(export.damaged, export.base, tmp_path / "out", head=Scheme(8, 128))
    expected = written(export.sound, tmp_path / "expected", int8_head)
    assert_same_bits(tensors(out), tensors(expected))
    assert side_files(out) == side_files(expected)


@pytest.fixture
def one(qwen_moe_base: Path, tmp_path: Path) -> Export:
    """One damaged export to change further."""
    preset = load_preset("body-int4-g128")
    sound = written(qwen_moe_base, tmp_path / "sound", partial(quantize, groups=preset.groups, ignore=preset.ignore))
    shutil.copytree(sound, tmp_path / "damaged")
    damage.damage_export(tmp_path / "damaged")
    return Export(qwen_moe_base, sound, tmp_path / "damaged")


def test_a_publishers_own_card_stays_and_a_missing_one_comes_from_the_base(one: Export, tmp_path: Path) -> None:
    without = fixed(one.damaged, one.base, tmp_path / "without")
    assert (without / "README.md").read_bytes() == (one.base / "README.md").read_bytes()
    (one.damaged / "README.md").write_text("# My own build\n")
    with_own = fixed(one.damaged, one.base, tmp_path / "with")
    assert (with_own / "README.md").read_text() == "# My own build\n"


def test_a_norm_that_a_smoothing_step_scaled_is_refused_until_it_is_named(one: Export, tmp_path: Path) -> None:
    """AWQ divides norms by scales that it folded into the next layer: putting the base's back would break the model."""
    change(one.damaged, lambda state: state[NORM].mul_(1.7), holding=NORM)
    refused = fixup_draft(one.damaged, one.base)
    assert codes(refused) == ["dense-differs"]
    text = str(refused.problems[0])
    assert [w for w in (NORM, "differs by up to", "--restore", "--keep") if w not in text] == []
    with pytest.raises(Refused):
        plan_for(refused, tmp_path / "refused")

    base, scaled = tensors(one.base)[NORM], tensors(one.damaged)[NORM]
    restored = tensors(fixed(one.damaged, one.base, tmp_path / "restored", restore=(NORM,)))
    assert torch.equal(restored[NORM], base)
    kept = tensors(fixed(one.damaged, one.base, tmp_path / "kept", keep=(r"re:.*layers\.1\.input_layernorm\.weight",)))
    assert torch.equal(kept[NORM], scaled)
    others = [name for name in restored if name != NORM]
    assert_same_bits({name: kept[name] for name in others}, {name: restored[name] for name in others})


def test_a_vision_tower_that_was_lost_comes_back_and_is_ignored(one: Export, tmp_path: Path) -> None:
    shard_of: dict[str, str] = {}
    for path, state in read_shards(one.damaged):
        kept = {name: tensor for name, tensor in state.items() if not name.startswith("model.visual.")}
        save_shard(path, kept)
        shard_of |= dict.fromkeys(kept, path.name)
    write_index(one.damaged, shard_of, 0)
    out = fixed(one.damaged, one.base, tmp_path / "out")
    assert_same_bits(tensors(out), tensors(one.sound))
    assert config_of(out) == config_of(one.sound)
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert {file for name, file in index.items() if name.startswith("model.visual.")} == {"model-restored.safetensors"}


def test_an_export_by_llm_compressor_becomes_what_quantize_writes(qwen_moe_base: Path, tmp_path: Path) -> None:
    """It takes the experts of the dense MTP head apart, sorts the config and spells out what is null."""
    pytest.importorskip("llmcompressor")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import model_free_ptq

    (group,) = load_preset("experts-int4-g32").groups
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=list(group.targets), weights=args)
    exported, base = tmp_path / "exported", str(qwen_moe_base)
    model_free_ptq(base, str(exported), scheme=scheme, ignore=["re:.*mtp.*"], device="cpu", max_workers=1)
    assert "mtp.layers.0.mlp.experts.3.up_proj.weight" in tensors(exported)
    assert "zp_dtype" in (exported / "config.json").read_text()

    mended = fixed(exported, qwen_moe_base, tmp_path / "mended")
    own = written(
        qwen_moe_base, tmp_path / "own", partial(quantize, groups=[group], ignore=["re:mtp.*"], maths="eager")
    )
    assert_same_bits(tensors(mended), tensors(own))
    (entry,) = config_of(mended)["quantization_config"]["config_groups"].values()
    assert entry == config_of(own)["quantization_config"]["config_groups"]["group_0"]
    assert config_of(mended)["quantization_config"]["ignore"] == config_of(own)["quantization_config"]["ignore"]
    findings = verify(mended, base=qwen_moe_base, level="full").findings
    assert [finding for finding in findings if finding.severity == "error"] == []


def test_an_unquantized_export_is_mended_without_a_quantization_config(qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(qwen_moe_f32_base, damaged)
    damage.damage_export(damaged)
    out = fixed(damaged, qwen_moe_f32_base, tmp_path / "out")
    assert_same_bits(tensors(out), tensors(qwen_moe_f32_base))
    assert side_files(out) == side_files(qwen_moe_f32_base)


def test_invalid_patterns_are_refused(one: Export) -> None:
    assert codes(fixup_draft(one.damaged, one.base, restore=("re:*",))) == ["pattern-invalid"]
    with pytest.raises(Refused, match="regular expression"):
        keep_dense([], ["re:("])


def test_every_refusal_of_every_step_is_reported_together(one: Export, tmp_path: Path) -> None:
    change(one.damaged, lambda state: state[NORM].mul_(1.7), holding=NORM)
    base = tmp_path / "base"
    shutil.copytree(one.base, base)
    holding = "mtp.layers.0.self_attn.q_proj.weight"
    change(base, lambda state: state.update({holding: state[holding][:-1]}), holding=holding)
    assert codes(fixup_draft(one.damaged, base)) == ["mtp-shape", "dense-differs"]
