"""The inputs of the other tests are what they claim to be, by transformers, safetensors and the published figures."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from demo import damage
from demo.qwen_moe import build_base, logits
from demo.replica import inventory
from demo.smollm2 import generate
from demo.sparse import write_sparse

# Sizes of the files of Qwen/Qwen3.6-35B-A3B as its repository lists them.
PUBLISHED_SHARD_SIZES = [
    3996199712, 1284907696, 3357898360, 3370808712, 3357898360, 3959424904, 1096788232, 3946842008, 1096460848,
    3946841992, 1096460752, 3409971080, 1633331664, 3422553872, 1633659224, 3946842136, 1096460608, 3946841992,
    1096460808, 3409971072, 1633331744, 3370808752, 3357898392, 3370808752, 3832888256, 2231416848,
]  # fmt: skip
PUBLISHED_INDEX_SHA256 = "41b9356101ebf8e7519e150dc811f80c4226e727301fbb032b890f006ed0be83"
PROMPT = [5, 300, 77, 412, 9, 130, 256, 33, 471, 64]


def tensors_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """`{name: (dtype, shape)}` of all shards, as safetensors reads their headers."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as shard:
            assert shard.metadata() == {"format": "pt"}
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                view = shard.get_slice(name)
                found[name] = (view.get_dtype(), tuple(view.get_shape()))
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def loading_report(folder: Path) -> dict[str, Any]:
    from transformers import Qwen3_5MoeForConditionalGeneration

    _, report = Qwen3_5MoeForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    return {kind: names for kind, names in report.items() if names}


@pytest.fixture
def qwen_copy(qwen_moe_base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen_moe_base, tmp_path / "export"))


@pytest.fixture
def qwen_f32_copy(qwen_moe_f32_base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen_moe_f32_base, tmp_path / "export"))


def load(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


class TestSmolLM2:
    def test_answers_a_question_through_its_chat_template(self, smollm2_base: Path) -> None:
        assert "Paris" in generate(smollm2_base, "What is the capital of France?", max_new_tokens=12)

    def test_is_bf16_and_tied_in_three_indexed_shards(self, smollm2_base: Path) -> None:
        tensors = tensors_of(smollm2_base)
        index = read_json(smollm2_base / "model.safetensors.index.json")
        assert index["weight_map"].keys() == tensors.keys()
        assert len(set(index["weight_map"].values())) == 3
        assert {dtype for dtype, _ in tensors.values()} == {"BF16"}
        assert "lm_head.weight" not in tensors
        assert tensors["model.embed_tokens.weight"] == ("BF16", (49152, 576))

    def test_config_claims_no_quantization(self, smollm2_base: Path) -> None:
        config = read_json(smollm2_base / "config.json")
        assert "quantization_config" not in config
        assert config["tie_word_embeddings"] is True
        assert config["architectures"] == ["LlamaForCausalLM"]


class TestQwenMoe:
    def test_transformers_finds_every_tensor_and_no_other(self, qwen_moe_base: Path, qwen_moe_f32_base: Path) -> None:
        assert loading_report(qwen_moe_base) == {}
        assert loading_report(qwen_moe_f32_base) == {}

    def test_logits_are_finite_and_name_a_distinct_successor_for_each_token(self, qwen_moe_base: Path) -> None:
        scores = logits(qwen_moe_base, PROMPT)
        assert scores.shape == (len(PROMPT), 512)
        assert scores.isfinite().all()
        assert scores.softmax(-1).amax(-1).mean() > 0.5
        assert len(set(scores.argmax(-1).tolist())) == len(PROMPT)

    def test_experts_are_fused_and_their_names_end_without_weight(self, qwen_moe_base: Path) -> None:
        tensors = tensors_of(qwen_moe_base)
        experts = {name: shape for name, (_, shape) in tensors.items() if ".mlp.experts." in name}
        prefixes = [f"model.language_model.layers.{layer}.mlp.experts." for layer in range(4)]
        prefixes.append("mtp.layers.0.mlp.experts.")
        expected = {prefix + "gate_up_proj": (8, 512, 256) for prefix in prefixes}
        expected |= {prefix + "down_proj": (8, 256, 256) for prefix in prefixes}
        assert experts == expected

    @pytest.mark.parametrize(("fixture", "count"), [("qwen_moe_base", 19), ("qwen_moe_f32_base", 17 + 3 * 8)])
    def test_draft_head_has_the_published_number_of_tensors(
        self, fixture: str, count: int, request: pytest.FixtureRequest
    ) -> None:
        tensors = tensors_of(request.getfixturevalue(fixture))
        assert sum(name.startswith("mtp.") for name in tensors) == count

    def test_draft_layouts_hold_the_same_matrices(self, qwen_moe_base: Path, qwen_moe_f32_base: Path) -> None:
        fused, split = load(qwen_moe_base), load(qwen_moe_f32_base)
        prefix = "mtp.layers.0.mlp.experts."
        assert split[f"{prefix}5.gate_proj.weight"].equal(fused[f"{prefix}gate_up_proj"][5, :256])
        assert split[f"{prefix}5.up_proj.weight"].equal(fused[f"{prefix}gate_up_proj"][5, 256:])
        assert split[f"{prefix}5.down_proj.weight"].equal(fused[f"{prefix}down_proj"][5])

    def test_f32_state_is_stored_and_needs_f32(self, qwen_moe_base: Path, qwen_moe_f32_base: Path) -> None:
        state = {name for name, (dtype, _) in tensors_of(qwen_moe_f32_base).items() if dtype == "F32"}
        layers = [f"model.language_model.layers.{layer}.linear_attn." for layer in range(3)]
        assert state == {layer + name for layer in layers for name in ("A_log", "norm.weight")}
        tensors = load(qwen_moe_f32_base)
        assert not any(tensors[name].bfloat16().float().equal(tensors[name]) for name in state)
        assert {dtype for dtype, _ in tensors_of(qwen_moe_base).values()} == {"BF16"}

    def test_shards_cut_through_layers_pairs_and_draft_head(self, qwen_moe_base: Path) -> None:
        shard_of = read_json(qwen_moe_base / "model.safetensors.index.json")["weight_map"]
        assert len(set(shard_of.values())) == 5
        for prefix in [f"model.language_model.layers.{layer}" for layer in range(4)] + ["mtp.layers.0"]:
            assert shard_of[f"{prefix}.mlp.experts.gate_up_proj"] != shard_of[f"{prefix}.mlp.experts.down_proj"]

    def test_index_total_is_the_sum_of_tensor_bytes(self, qwen_moe_base: Path) -> None:
        index = read_json(qwen_moe_base / "model.safetensors.index.json")
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in load(qwen_moe_base).values())

    def test_tokenizer_knows_chat_and_vision_tokens_of_the_config(self, qwen_moe_base: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(qwen_moe_base)
        config = read_json(qwen_moe_base / "config.json")
        assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == config["image_token_id"]
        assert tokenizer.convert_tokens_to_ids("<|vision_start|>") == config["vision_start_token_id"]
        assert tokenizer.eos_token_id in read_json(qwen_moe_base / "generation_config.json")["eos_token_id"]
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hé?"}], tokenize=False)
        assert chat == "<|im_start|>user\nHé?<|im_end|>\n"
        assert tokenizer.decode(tokenizer(chat)["input_ids"]) == chat

    def test_config_is_neither_sorted_nor_formatted_as_a_library_would(self, qwen_moe_base: Path) -> None:
        text = (qwen_moe_base / "config.json").read_text()
        document = json.loads(text)
        assert text != json.dumps(document, indent=4, sort_keys=True)
        assert text != json.dumps(document, indent=2) + "\n"

    def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(
        self, qwen_moe_base: Path, tmp_path: Path
    ) -> None:
        first = "model-00003-of-00005.safetensors"
        assert (build_base(tmp_path / "same") / first).read_bytes() == (qwen_moe_base / first).read_bytes()
        assert (build_base(tmp_path / "other", seed=1) / first).read_bytes() != (qwen_moe_base / first).read_bytes()


class TestDamage:
    def test_dropped_draft_head_leaves_transformers_content(self, qwen_copy: Path) -> None:
        before = tensors_of(qwen_copy)
        damage.drop_draft_head(qwen_copy)
        gone = before.keys() - tensors_of(qwen_copy).keys()
        assert gone == {name for name in before if name.startswith("mtp.")}
        index = read_json(qwen_copy / "model.safetensors.index.json")
        assert index["weight_map"].keys() == tensors_of(qwen_copy).keys()
        assert loading_report(qwen_copy) == {}

    def test_altered_norms_are_those_of_norm_calibration(self, qwen_copy: Path) -> None:
        import torch

        offset_norm = pytest.importorskip("llmcompressor.modeling.offset_norm")
        before = load(qwen_copy)
        damage.alter_norms(qwen_copy)
        after = load(qwen_copy)
        changed = {name for name in before if not before[name].equal(after[name])}
        # Two norms of each of four layers, the final norm, and q and k norm of the one full-attention layer.
        assert len(changed) == 2 * 4 + 1 + 2
        for name in changed:
            norm: Any = torch.nn.Module()
            norm.eps, norm.weight = 1e-6, torch.nn.Parameter(before[name].clone())
            offset_norm.CalibrationOffsetNorm(norm, None).restore(norm)
            assert after[name].equal(norm.weight.data)

    def test_downcast_turns_f32_state_into_its_nearest_bf16(self, qwen_f32_copy: Path) -> None:
        before = load(qwen_f32_copy)
        damage.downcast_state(qwen_f32_copy)
        after = load(qwen_f32_copy)
        assert {dtype for dtype, _ in tensors_of(qwen_f32_copy).values()} == {"BF16"}
        assert all(after[name].equal(before[name].bfloat16()) for name in before)

    def test_reserialised_side_files_lose_what_transformers_does_not_write(self, qwen_copy: Path) -> None:
        damage.reserialise_side_files(qwen_copy)
        config = read_json(qwen_copy / "tokenizer_config.json")
        assert config["tokenizer_class"] == "TokenizersBackend"
        assert isinstance(config["extra_special_tokens"], list)
        assert "added_tokens_decoder" not in config
        assert not any((qwen_copy / name).exists() for name in damage.LOST_FILES)

    def test_expanded_ignore_names_dense_linears_of_the_body_only(self, qwen_copy: Path) -> None:
        path = qwen_copy / "config.json"
        path.write_text(json.dumps({**read_json(path), "quantization_config": {"ignore": ["re:.*mtp.*"]}}))
        damage.expand_ignore(qwen_copy)
        ignore = read_json(path)["quantization_config"]["ignore"]
        assert set(ignore) == dense_linears_by_class(qwen_copy)
        assert path.read_text() == json.dumps(read_json(path), indent=2, sort_keys=True) + "\n"

    def test_damage_leaves_the_original_of_hard_links_alone(self, qwen_copy: Path, tmp_path: Path) -> None:
        linked = Path(shutil.copytree(qwen_copy, tmp_path / "linked", copy_function=os.link))
        before = {path.name: path.read_bytes() for path in qwen_copy.iterdir()}
        damage.damage_export(linked)
        assert {path.name: path.read_bytes() for path in qwen_copy.iterdir()} == before

    def test_all_damages_together_still_load(self, qwen_f32_copy: Path) -> None:
        damage.damage_export(qwen_f32_copy)
        assert loading_report(qwen_f32_copy) == {}


def dense_linears_by_class(folder: Path) -> set[str]:
    """Linear modules and routers of the model that transformers builds from the config."""
    import torch
    from transformers import AutoConfig, Qwen3_5MoeForConditionalGeneration

    config = read_json(folder / "config.json")
    del config["quantization_config"]
    with torch.device("meta"):
        model = Qwen3_5MoeForConditionalGeneration(AutoConfig.for_model(**config))
    modules = dict(model.named_modules())
    return {name for name, m in modules.items() if isinstance(m, torch.nn.Linear) or name.endswith(".mlp.gate")}


class TestReplica:
    def test_shard_sizes_are_the_published_ones(self, replica: Path) -> None:
        shards = sorted(replica.glob("*.safetensors"))
        assert [path.stat().st_size for path in shards] == PUBLISHED_SHARD_SIZES

    def test_index_is_the_published_one_byte_for_byte(self, replica: Path) -> None:
        index = (replica / "model.safetensors.index.json").read_bytes()
        assert hashlib.sha256(index).hexdigest() == PUBLISHED_INDEX_SHA256

    def test_safetensors_reads_every_header(self, replica: Path) -> None:
        tensors = tensors_of(replica)
        assert len(tensors) == 1045
        assert tensors == {name: (dtype, tuple(shape)) for name, (dtype, shape) in inventory().items()}

    def test_occupies_almost_no_disk(self, replica: Path) -> None:
        assert sum(path.stat().st_blocks * 512 for path in replica.iterdir()) < 2**20

    def test_names_and_shapes_are_those_transformers_builds_from_the_config(self, replica: Path) -> None:
        import torch
        from transformers import AutoConfig, Qwen3_5MoeForConditionalGeneration

        with torch.device("meta"):
            model = Qwen3_5MoeForConditionalGeneration(AutoConfig.from_pretrained(replica))
        built = {name: ("BF16", tuple(parameter.shape)) for name, parameter in model.named_parameters()}
        stored = {name: value for name, value in tensors_of(replica).items() if not name.startswith("mtp.")}
        assert stored == built


class TestSparse:
    def test_header_is_the_one_safetensors_writes(self, tmp_path: Path) -> None:
        import torch
        from safetensors.torch import save_file

        dtypes = {
            "U8": torch.uint8,
            "I8": torch.int8,
            "F8_E4M3": torch.float8_e4m3fn,
            "I16": torch.int16,
            "F16": torch.float16,
            "BF16": torch.bfloat16,
            "I32": torch.int32,
            "F32": torch.float32,
            "F64": torch.float64,
            "I64": torch.int64,
        }
        tensors = {f"{name}.{kind}": torch.zeros(2, 3, dtype=t) for name in "ba" for kind, t in dtypes.items()}
        save_file(tensors, tmp_path / "real.safetensors", metadata={"format": "pt"})
        kinds = {name: (name.partition(".")[2], (2, 3)) for name in tensors}
        size = write_sparse(tmp_path / "sparse.safetensors", kinds)
        assert size == os.path.getsize(tmp_path / "real.safetensors")
        assert (tmp_path / "sparse.safetensors").read_bytes() == (tmp_path / "real.safetensors").read_bytes()

    def test_a_shard_of_many_gigabytes_takes_no_disk(self, tmp_path: Path) -> None:
        path = tmp_path / "big.safetensors"
        assert write_sparse(path, {"w": ("BF16", (2**16, 2**16))}) > 2**33
        assert path.stat().st_blocks * 512 < 2**16
