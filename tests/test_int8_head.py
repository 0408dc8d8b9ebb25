"""`lm_head` to INT8 behind a packed body: the numbers, the config around it, the one shard that is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from building import (  # noqa: E402
    LLAMA,
    changed,
    is_layer_linear,
    llama_entries,
    pack,
    packed_llama,
    quantization,
    scheme,
    without,
    write_checkpoint,
)
from reference import packed  # noqa: E402
from writing import State, assert_same_bits, codes, config_of, drafted, tensors, written  # noqa: E402

from checkpoint import open_checkpoint  # noqa: E402
from surgery import Group, Maths, Scheme, int8_head, quantize  # noqa: E402

HEAD = "lm_head.weight"
EXPERTS = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
GROUP = {
    "targets": ["re:.*lm_head$"],
    "weights": {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 128,
        "dynamic": False,
    },
    "input_activations": None,
    "output_activations": None,
    "format": "pack-quantized",
}


@pytest.fixture(scope="module")
def export(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small MoE with packed experts and a dense head."""
    groups = [Group((EXPERTS,), Scheme(4, 32))]
    return written(qwen_moe_base, tmp_path_factory.mktemp("export") / "out", partial(quantize, groups=groups))


def head_parts(state: State) -> State:
    return {name.removeprefix("lm_head."): t for name, t in state.items() if name.startswith("lm_head.")}


@pytest.mark.parametrize("size", [128, 32, None])
def test_the_head_is_packed_as_the_formulas_say(size: int | None, export: Path, tmp_path: Path) -> None:
    out = written(export, tmp_path / "out", partial(int8_head, scheme=Scheme(8, size)))
    assert_same_bits(head_parts(tensors(out)), packed(tensors(export)[HEAD], 8, size))


@pytest.mark.parametrize("size, maths", [(128, "eager"), (None, "eager")])
def test_eager_maths_equals_llm_compressor(size: int | None, maths: Maths, qwen_moe_base: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import model_free_ptq

    own = Scheme(8, size)
    group = QuantizationScheme(targets=[r"re:.*lm_head$"], weights=QuantizationArgs(**own.arguments))
    model_free_ptq(str(qwen_moe_base), str(tmp_path / "theirs"), scheme=group, device="cpu", max_workers=1)
    body = [Group((r"re:.*self_attn\.o_proj$",), Scheme(4, 32))]
    steps = (partial(quantize, groups=body), partial(int8_head, scheme=own, maths=maths))
    ours = written(qwen_moe_base, tmp_path / "ours", *steps)
    assert_same_bits(head_parts(tensors(ours)), head_parts(tensors(tmp_path / "theirs")))


def test_only_the_shard_with_the_head_is_written(export: Path, tmp_path: Path) -> None:
    out = written(export, tmp_path / "out", int8_head)
    changed_files = [p.name for p in export.glob("*.safetensors") if p.read_bytes() != (out / p.name).read_bytes()]
    assert changed_files == ["model-00005-of-00005.safetensors"]
    before, after = tensors(export), tensors(out)
    assert_same_bits(
        {name: t for name, t in after.items() if not name.startswith("lm_head.")},
        {name: t for name, t in before.items() if name != HEAD},
    )


def test_a_further_group_names_the_head_and_the_ignore_list_no_longer_does(export: Path, tmp_path: Path) -> None:
    out = written(export, tmp_path / "out", int8_head)
    before, after = (config_of(folder)["quantization_config"] for folder in (export, out))
    assert after["config_groups"] == before["config_groups"] | {"group_1": GROUP}
    assert list(after["config_groups"]) == ["group_0", "group_1"]
    assert after["ignore"] == [entry for entry in before["ignore"] if entry != r"re:.*lm_head$"]
    assert after["format"] == "pack-quantized"


# around the config


def llama(folder: Path, *ignore: str, drop: tuple[str, ...] = (), rows: int = 64, **config: Any) -> Path:
    """Layers packed, head dense; `drop` leaves tensors out, `rows` is the height of the head."""
    found = pack(llama_entries(), is_layer_linear) | {HEAD: ("BF16", (rows, 128), None)}
    document = LLAMA | {"quantization_config": quantization(*ignore, group_0=scheme())} | config
    return write_checkpoint(folder, without(found, *drop), document)


@pytest.mark.parametrize(
    "before, after",
    [
        (["lm_head"], []),
        ([r"re:.*lm_head$", "re:.*lm_head"], []),
        (["re:.*norm", "lm_head", "re:nonesuch"], ["re:.*norm", "re:nonesuch"]),
        ([], []),
    ],
)
def test_entries_for_the_head_go_and_others_stay(before: list[str], after: list[str], tmp_path: Path) -> None:
    draft = drafted(llama(tmp_path / "a", *before), int8_head)
    assert codes(draft) == []
    assert draft.config.value["quantization_config"]["ignore"] == after


def test_an_entry_that_covers_more_than_the_head_is_replaced_by_one_for_the_rest(tmp_path: Path) -> None:
    """`re:.*(head|o_proj)` keeps the dense o_proj modules out of the packed ones."""
    found = pack(llama_entries(), lambda module: module.endswith("_proj") and "o_proj" not in module)
    document = LLAMA | {"quantization_config": quantization("re:x", "re:.*(head|o_proj)", "re:y")}
    draft = drafted(write_checkpoint(tmp_path / "a", found, document), int8_head)
    assert draft.config.value["quantization_config"]["ignore"] == ["re:x", r"re:.*o_proj$", "re:y"]


def test_groups_without_a_format_are_given_theirs(tmp_path: Path) -> None:
    """vLLM gives a group no scheme where the top level says mixed-precision and the group says nothing."""
    source = llama(
        tmp_path / "a", "lm_head", quantization_config=quantization("lm_head", x=scheme() | {"format": None})
    )
    groups = drafted(source, int8_head).config.value["quantization_config"]["config_groups"]
    assert [(name, group["format"]) for name, group in groups.items()] == [
        ("x", "pack-quantized"),
        ("group_1", "pack-quantized"),
    ]


def test_a_group_name_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    source = llama(tmp_path / "a", quantization_config=quantization("lm_head", group_1=scheme()))
    groups = drafted(source, int8_head).config.value["quantization_config"]["config_groups"]
    assert list(groups) == ["group_1", "group_2"]


def test_a_head_that_the_export_lacks_comes_from_the_base(tmp_path: Path) -> None:
    base = write_checkpoint(
        tmp_path / "b", llama_entries() | {HEAD: ("BF16", (64, 128), b"\x80\x3f" * 64 * 128)}, LLAMA
    )
    source = llama(tmp_path / "a", "lm_head", drop=(HEAD,))
    out = written(source, tmp_path / "out", partial(int8_head, base=open_checkpoint(base)))
    assert_same_bits(head_parts(tensors(out)), packed(tensors(base)[HEAD], 8, 128))
    assert (out / "model-head.safetensors").exists()
    assert HEAD not in tensors(out)


# refusals


def refused(source: Path, **options: Any) -> tuple[list[str], str]:
    draft = drafted(source, partial(int8_head, **options))
    assert "lm_head.weight_packed" not in draft.tensors or "packed-already" in codes(draft)
    return codes(draft), "\n".join(map(str, draft.problems))


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": None, "model_type": "qwen3_5_moe", "text_config": {"tie_word_embeddings": True}},
        {"tie_word_embeddings": True, "model_type": "nonesuch"},
    ],
)
def test_a_tied_head_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    found, text = refused(llama(tmp_path / "a", "lm_head", **config))
    assert found == ["tied"]
    assert "config.json: tie_word_embeddings is true" in text


def test_a_tied_head_without_a_tensor_is_told_once(tmp_path: Path) -> None:
    found, _ = refused(llama(tmp_path / "a", "lm_head", drop=(HEAD,), tie_word_embeddings=True))
    assert found == ["tied"]


def test_a_head_that_is_packed_already_is_refused(tmp_path: Path) -> None:
    source = written(packed_llama(tmp_path / "a"), tmp_path / "b", int8_head)
    found, text = refused(source)
    assert found == ["head-targeted", "packed-already"]
    assert "config_groups.group_1 targets the head already ('re:.*lm_head$')" in text


def test_a_head_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    source = llama(tmp_path / "a", "lm_head", drop=(HEAD,))
    found, text = refused(source)
    assert found == ["head-absent"]
    assert "lm_head.weight: no dense head in the export. Give the base that has it as --base" in text
    found, text = refused(source, base=open_checkpoint(source))
    assert found == ["head-absent"]
    assert f"Nor is it in {source}" in text


def test_a_head_of_other_rows_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    found, text = refused(llama(tmp_path / "a", "lm_head", rows=96))
    assert found == ["head-shape"]
    assert "model-00001-of-00002.safetensors: lm_head.weight: 96 rows; expected 64, the vocab_size" in text


def test_columns_that_the_group_size_does_not_divide_are_refused(tmp_path: Path) -> None:
    found, text = refused(llama(tmp_path / "a", "lm_head"), scheme=Scheme(8, 96))
    assert found == ["group-size"]
    assert "128 columns do not divide into groups of 96. Group sizes that do: 32, 64, 128, channel" in text


@pytest.mark.parametrize("target", ["lm_head", "re:.*", "re:.*head$"])
def test_a_target_that_reaches_the_head_by_name_is_refused(target: str, tmp_path: Path) -> None:
    group = scheme() | {"targets": ["Linear", target]}
    found, text = refused(llama(tmp_path / "a", quantization_config=quantization("lm_head", group_0=group)))
    assert found == ["head-targeted"]
    assert f"config_groups.group_0 targets the head already ('{target}')" in text


def test_patterns_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    group = scheme() | {"targets": ["re:*"]}
    found, text = refused(llama(tmp_path / "a", quantization_config=quantization("re:(", group_0=group)))
    assert found == ["pattern-invalid"]
    assert "re:*" in text
    assert "re:(" in text


def test_an_unquantized_or_foreign_export_is_refused(tmp_path: Path) -> None:
    assert refused(write_checkpoint(tmp_path / "a", llama_entries(), LLAMA))[0] == ["not-quantized"]
    foreign = changed(quantization("lm_head"), "quant_method", value="gptq")
    assert refused(llama(tmp_path / "b", quantization_config=foreign))[0] == ["format-unsupported"]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    source = llama(tmp_path / "a", "lm_head", rows=96, tie_word_embeddings=True)
    assert refused(source, scheme=Scheme(8, 96))[0] == ["tied", "group-size", "head-shape"]
