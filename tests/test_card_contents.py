"""What a card says is stored: its numbers beside other counts of the same files, its reasons, its sizes."""

from __future__ import annotations

import hashlib
import json
import shutil
from math import prod
from pathlib import Path

import pytest
import qwen
from building import (
    LLAMA,
    WIDTHS,
    Entries,
    entries_of,
    int64s,
    llama_entries,
    pack,
    packed,
    packed_llama,
    quantization,
    scheme,
    without,
    write_checkpoint,
)
from carding import card_of, experts, packed_head, parameters, rows_of, section_of, stored
from safetensors import safe_open

from cards import look_at
from cards.markers import README
from cards.parts import parts, why_dense
from cards.wording import billions, both_sizes, size
from checkpoint import UnreadableCheckpoint, survey
from checkpoint.families import load_family
from costs import table_order
from schemas import validate

CARDS = Path(__file__).parents[1] / "cards"
TITLES = {part.id: part.title.replace("`", "") for part in parts()}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return experts(tmp_path_factory.mktemp("card") / "experts")


@pytest.fixture(scope="module")
def head_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_head(tmp_path_factory.mktemp("card") / "head")


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def bytes_read_by_safetensors(folder: Path) -> int:
    """All tensors, by the dtypes and shapes that the safetensors package reads."""
    found = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 - no mapping
            found += sum(WIDTHS[one.get_dtype()] * prod(one.get_shape()) for one in tensors)
    return found


@pytest.mark.parametrize("build", ["export", "head_export"])
def test_the_sums_are_those_of_the_files_themselves(build: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(build)
    total = rows_of(section_of(folder), "Quantization")[-1]
    assert number(total[3]) == parameters(stored(folder))
    assert total[4] == size(bytes_read_by_safetensors(folder))


@pytest.mark.parametrize("build", ["export", "head_export"])
def test_the_rows_add_up_to_the_last(build: str, request: pytest.FixtureRequest) -> None:
    *rows, total = rows_of(section_of(request.getfixturevalue(build)), "Quantization")[1:]
    assert [sum(number(row[column]) for row in rows) for column in (2, 3)] == [number(total[2]), number(total[3])]


def test_every_part_of_the_model_has_its_row_and_form(head_export: Path) -> None:
    rows = {row[0]: row[1:4] for row in rows_of(section_of(head_export), "Quantization")[1:-1]}
    hidden, intermediate, layers, experts_each = qwen.HIDDEN, qwen.INTERMEDIATE, qwen.LAYERS, qwen.EXPERTS
    assert rows[TITLES["experts"]] == [
        "INT4, groups of 32",
        str(layers * experts_each * 3),
        f"{layers * experts_each * 3 * hidden * intermediate:,}",
    ]
    assert rows[TITLES["head"]] == ["INT8, groups of 128", "1", f"{qwen.VOCAB * hidden:,}"]
    assert rows[TITLES["shared_experts"]][:2] == ["BF16", str(layers * 3)]
    assert rows[TITLES["router"]][:2] == ["BF16", str(layers * 2)]
    assert rows[TITLES["attention"]][:2] == ["BF16", "4"]
    assert rows[TITLES["linear_attention"]][:2] == ["BF16", "9"]
    assert rows[TITLES["linear_attention_gates"]][:2] == ["BF16", "6"]
    assert rows[TITLES["linear_attention_state"]][:2] == ["BF16", "9"]
    assert rows[TITLES["mtp_experts"]][:2] == ["BF16", "2"]
    assert rows[TITLES["mtp"]][:2] == ["BF16", "17"]
    assert number(rows[TITLES["vision"]][2]) == sum(prod(shape) for shape in qwen.vision().values())
    assert not {TITLES["other"], TITLES["mlp"]} & set(rows)


def test_what_is_dense_has_a_reason_and_what_is_packed_none(export: Path) -> None:
    for row in rows_of(section_of(export), "Quantization")[1:-1]:
        assert bool(row[5]) == (not row[1].startswith("INT"))


def test_reasons_hold_of_this_checkpoint(export: Path, replica: Path) -> None:
    rows = {row[0]: row[5] for row in rows_of(section_of(export), "Quantization")[1:-1]}
    assert rows[TITLES["vision"]] == "SGLang never quantizes it"  # 64, 128 and 256 columns: they do divide
    assert rows[TITLES["linear_attention_gates"]].startswith("4 rows each")
    assert "(vllm#54304)" in rows[TITLES["embedding"]]
    assert rows[TITLES["router"]].startswith(
        "the router: vLLM builds it without a quantization method"
    )  # family's word


def test_what_engines_build_dense_is_no_choice(tmp_path: Path) -> None:
    """vLLM builds Qwen3-Next's head without a quantization config, and Llama's with one (verify/engines/vllm.json)."""
    (head,) = [row for row in look_at(survey(packed_llama(tmp_path / "model"))).rows if row.part.id == "head"]
    assert str(why_dense(head, load_family("qwen3_next"))).count("vLLM builds it dense whatever the config says") == 1
    assert "choice of this build" in str(why_dense(head, load_family("llama")))


def test_of_an_unknown_family_no_engine_is_said_to_do_anything(tmp_path: Path) -> None:
    config = qwen.config(*qwen.SOUND) | {"model_type": "novel"}
    folder = write_checkpoint(tmp_path / "model", pack(qwen.entries(), qwen.body_experts, 4, 32), config)
    section = section_of(folder)
    assert "--speculative-config" not in section
    reasons = {row[5] for row in rows_of(section, "Quantization")[1:-1]}
    assert not [one for one in reasons if "vLLM" in one or "SGLang" in one or "choice" in one]


def test_a_tower_whose_columns_do_not_divide_is_said_to_have_them(tmp_path: Path) -> None:
    entries = pack(qwen.entries(), qwen.body_experts, 4, 32)
    entries["model.visual.blocks.0.mlp.linear_fc2.weight"] = ("BF16", (64, 4304), None)
    folder = write_checkpoint(tmp_path / "model", entries, qwen.config(*qwen.SOUND))
    rows = {row[0]: row[5] for row in rows_of(section_of(folder), "Quantization")[1:-1]}
    assert "its 4,304 columns divide by no group size" in rows[TITLES["vision"]]


def test_what_is_known_by_no_name_is_dense_as_the_config_says(tmp_path: Path) -> None:
    entries = pack(llama_entries(), lambda name: name.endswith("_proj"))
    extra: Entries = {f"model.layers.{n}.adapter.{one}.weight": ("BF16", (8, 8), None) for n in (0, 1) for one in "ab"}
    ignoring = LLAMA | {"quantization_config": quantization("lm_head", "re:.*adapter.*")}
    rows = rows_of(section_of(write_checkpoint(tmp_path / "ignored", entries | extra, ignoring)), "Quantization")
    assert [row[5] for row in rows if row[0] == TITLES["other"]] == ["ignored by re:.*adapter.*"]
    groups = {"group_0": scheme() | {"targets": ["re:.*_proj$"]}}
    targeting = LLAMA | {"quantization_config": quantization("lm_head", **groups)}
    rows = rows_of(section_of(write_checkpoint(tmp_path / "untargeted", entries | extra, targeting)), "Quantization")
    assert [row[5] for row in rows if row[0] == TITLES["other"]] == ["no config group targets it"]


def test_shards_that_were_not_fetched_are_no_checkpoint(export: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(export, tmp_path / "model"))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1\n"
    next(folder.glob("*.safetensors")).write_text(pointer)
    with pytest.raises(UnreadableCheckpoint):
        card_of(folder)


def test_a_part_in_two_forms_has_two_rows(tmp_path: Path) -> None:
    entries = pack(qwen.entries(), qwen.body_experts, 4, 32)
    for layer in range(3):
        entries[f"{qwen.LAYER}{layer}.linear_attn.A_log"] = ("F32", (4,), None)
    folder = write_checkpoint(tmp_path / "model", entries, qwen.config(*qwen.SOUND))
    rows = [
        row[1:4] for row in rows_of(section_of(folder), "Quantization") if row[0] == TITLES["linear_attention_state"]
    ]
    assert rows == [["BF16", "6", f"{3 * 4 + 3 * 256 * 4:,}"], ["F32", "3", "12"]]


def test_a_dense_checkpoint_says_so(tmp_path: Path) -> None:
    section = section_of(write_checkpoint(tmp_path / "model", llama_entries(), LLAMA))
    assert "## Weights\n\nNot quantized. 21 modules." in section
    assert "### Format" not in section
    assert rows_of(section, "Weights")[0][-1] == "Size"


def test_a_format_that_no_rule_judges_is_named_and_nothing_is_claimed(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
    config = LLAMA | {"quantization_config": quantization("lm_head", **groups) | {"format": "float-quantized"}}
    entries = llama_entries()
    entries["model.layers.0.mlp.up_proj.weight"] = ("F8_E4M3", (256, 128), None)
    entries["model.layers.0.mlp.up_proj.weight_scale"] = ("BF16", (256, 1), None)
    section = section_of(write_checkpoint(tmp_path / "model", entries, config))
    assert "Quantized as group_0 (float weights)" in section
    assert "### Engines" not in section
    assert "### Serving" not in section
    assert "vLLM on one GPU" not in section
    assert "structure only" in section


def test_asymmetric_and_channelwise_schemes_are_named(tmp_path: Path) -> None:
    entries = llama_entries()
    for name, (_, shape, _) in llama_entries().items():
        if name.endswith("_proj.weight"):
            del entries[name]
            entries |= packed(name.removesuffix(".weight"), *shape, symmetric=False)
    groups = {"group_0": scheme(4, 32, symmetric=False)}
    config = LLAMA | {"quantization_config": quantization("lm_head", **groups)}
    section = section_of(write_checkpoint(tmp_path / "asymmetric", entries, config))
    assert "(INT4, groups of 32, zero points)" in section
    assert "- `group_0`: INT4, groups of 32, with zero points; targets `Linear`" in section
    section = section_of(packed_llama(tmp_path / "channel", 8, None))
    assert "(INT8, one scale per channel)" in section
    assert "- `group_0`: INT8, one scale per row, symmetric; targets `Linear`" in section


def test_a_width_that_nothing_explains_is_not_guessed(tmp_path: Path) -> None:
    """Of a family that nobody knows, without a config group for what is packed."""
    entries = pack(llama_entries(), lambda name: name.endswith("mlp.up_proj"))
    folder = write_checkpoint(tmp_path / "model", entries, {**LLAMA, "model_type": "novel"})
    total = rows_of(section_of(folder), "Quantization")[-1]
    known = sum(prod(shape) for name, (_, shape, _) in llama_entries().items() if "up_proj" not in name)
    assert total[3] == f"over {known:,}"


def test_what_vllm_allocates_is_counted_by_tensor(head_export: Path) -> None:
    """As stored, but for `weight_shape`, which is no weight, and `A_log`, which vLLM holds in 32 bits."""
    tensors = entries_of(head_export)
    tensors = {name: one for name, one in tensors.items() if not name.endswith(".weight_shape")}
    tensors |= {name: ("F32", shape, data) for name, (_, shape, data) in tensors.items() if name.endswith(".A_log")}
    widths = {"BF16": 2, "F32": 4, "I32": 4}
    main = {name: one for name, one in tensors.items() if not name.startswith("mtp.")}
    draft = {name: one for name, one in tensors.items() if name.startswith("mtp.")}
    sums = [sum(widths[dtype] * prod(shape) for dtype, shape, _ in part.values()) for part in (main, draft)]
    section = section_of(head_export)
    assert f"- weights in vLLM on one GPU {both_sizes(sums[0])}: packed values" in section
    assert f"- with speculative decoding {both_sizes(sums[1])} more, the MTP head" in section


def test_tensors_of_another_dtype_count_in_that_of_the_config(tmp_path: Path) -> None:
    wide: Entries = {name: ("F32", shape, None) for name, (_, shape, _) in llama_entries().items()}
    section = section_of(write_checkpoint(tmp_path / "model", wide, LLAMA))
    values = sum(prod(shape) for _, shape, _ in wide.values())
    assert f"- weights in vLLM on one GPU {both_sizes(2 * values)}: all in `bfloat16`" in section


def test_active_parameters_are_what_a_token_reads(export: Path) -> None:
    """2 of 4 routed experts; no vision tower, no draft head, no table of embeddings."""
    left_out = ("model.visual.", "mtp.", "model.language_model.embed_tokens.")
    tensors = {name: one for name, one in qwen.entries().items() if not name.startswith(left_out)}
    routed = sum(prod(shape) for name, (_, shape, _) in tensors.items() if ".experts." in name)
    active = sum(prod(shape) for _, shape, _ in tensors.values()) - routed // 2
    assert f"- {billions(active)} active for each token of text (2 of 4 routed experts; without " in section_of(export)


def test_a_dense_model_has_no_active_parameters_apart(tmp_path: Path) -> None:
    assert " active " not in section_of(packed_llama(tmp_path / "model"))


def test_a_tied_head_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    entries = without(pack(llama_entries(), lambda name: name.endswith("_proj")), "lm_head.weight")
    config = LLAMA | {"tie_word_embeddings": True, "quantization_config": quantization("lm_head")}
    assert "The output head is the token embedding (tied)." in section_of(write_checkpoint(folder, entries, config))
    assert "(tied)" not in section_of(packed_llama(tmp_path / "other"))


def test_small_files_are_hashed_and_shards_only_on_demand(export: Path) -> None:
    rows = {row[0]: row[1:] for row in rows_of(section_of(export, hashing=True), "Files")[1:]}
    for name, (nbytes, digest) in rows.items():
        content = (export / name).read_bytes()
        assert (nbytes, digest) == (f"{len(content):,}", hashlib.sha256(content).hexdigest())
    assert set(rows) == {path.name for path in export.iterdir()} - {README}
    without_hashes = {row[0]: row[2] for row in rows_of(section_of(export), "Files")[1:]}
    assert {name for name, digest in without_hashes.items() if digest == "not computed"} == {
        path.name for path in export.glob("*.safetensors")
    }


def test_a_hash_of_the_manifest_is_believed_for_a_shard_of_that_size_only(export: Path) -> None:
    shards = sorted(export.glob("*.safetensors"))
    told = {shards[0].name: {"bytes": shards[0].stat().st_size, "sha256": "a" * 64}}
    told[shards[1].name] = {"bytes": 1, "sha256": "b" * 64}
    manifest = {"runs": [], "inputs": [], "operations": [], "files": {}, "shards": told}
    rows = {row[0]: row[2] for row in rows_of(card_of(export, manifest=manifest).section, "Files")[1:]}
    assert [rows[path.name] for path in shards] == ["a" * 64, "not computed"]


@pytest.mark.parametrize("name", ["parts", "engines"])
def test_a_data_file_satisfies_its_schema(name: str) -> None:
    document = json.loads((CARDS / f"{name}.json").read_text())
    assert validate(document, f"card_{name}") == []
    assert validate(document | {"more": 1}, f"card_{name}")


def test_every_part_has_its_place_in_the_table() -> None:
    assert sorted(table_order()) == sorted(part.id for part in parts())


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.02 kB (1.00 KiB)"),
        (16_609_935_360, "16.61 GB (15.47 GiB)"),
        (71_903_645_408, "71.90 GB (66.97 GiB)"),
    ],
)
def test_sizes_are_in_decimal_units_with_the_binary_ones_beside(nbytes: int, said: str) -> None:
    assert both_sizes(nbytes) == said


def test_the_full_size_replica_has_the_published_numbers(replica: Path) -> None:
    """35,951,822,704 parameters, 71,903,645,408 bytes, 3 billion of them active: as the release states them."""
    card = card_of(replica)
    assert "- 35.95 B parameters (35,951,822,704)" in card.section
    assert rows_of(card.section, "Weights")[-1][3:5] == ["35,951,822,704", "71.90 GB"]
    assert (
        "- 2.95 B active for each token of text (8 of 256 routed experts; without the token embedding, " in card.section
    )


def test_weight_shape_is_no_parameter(tmp_path: Path) -> None:
    entries = {**pack(llama_entries(), lambda name: name.endswith("up_proj"))}
    assert entries["model.layers.0.mlp.up_proj.weight_shape"][2] == int64s(256, 128)
    config = LLAMA | {"quantization_config": quantization("lm_head", "re:.*self_attn.*", "re:.*(gate|down)_proj")}
    total = rows_of(section_of(write_checkpoint(tmp_path / "model", entries, config)), "Quantization")[-1]
    assert number(total[3]) == sum(prod(shape) for _, shape, _ in llama_entries().values())
