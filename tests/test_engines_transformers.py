"""Engines: our view of transformers against transformers and compressed-tensors themselves, on models without data."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import qwen
from building import LLAMA, entries_of, is_layer_linear, llama_entries, pack, quantization, scheme, write_checkpoint
from qwen import IGNORE, LAYER, SOUND, group

from checkpoint import survey
from verify.case import Case
from verify.engines import experts_group

if TYPE_CHECKING:
    import torch

pytest.importorskip("transformers")


def packed_by_transformers(document: dict[str, Any]) -> dict[str, str]:
    """Module -> group, for every module to which compressed-tensors gives a scheme in transformers' own model."""
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    plain = {key: value for key, value in document.items() if key != "quantization_config"}
    model = _model(plain)
    config = QuantizationConfig.model_validate(deepcopy(document["quantization_config"]))
    names = {id(group): name for name, group in config.config_groups.items()}
    schemes = {name: _plain(config.config_groups[name]) for name in names.values()}
    apply_quantization_config(model, config, show_progress=False)
    found = {}
    for name, module in model.named_modules():
        scheme_found = getattr(module, "quantization_scheme", None)
        if scheme_found is not None:
            found[name] = next(group for group, one in schemes.items() if one == _plain(scheme_found))
    return found


def _plain(one: Any) -> dict[str, Any]:
    data: dict[str, Any] = one.weights.model_dump()
    return {key: data[key] for key in ("num_bits", "group_size", "strategy", "symmetric")}


def _model(document: dict[str, Any]) -> torch.nn.Module:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.for_model(**document)
    factory = AutoModelForImageTextToText if "vision_config" in document else AutoModelForCausalLM
    with torch.device("meta"):
        model: torch.nn.Module = factory.from_config(config)
    return model


def packed_by_us(case: Case) -> dict[str, str]:
    """The same of `transformers` in our view, without the experts, which are no modules there."""
    (resolved,) = case.resolved
    return {module: one.group for module, one in resolved.main.items() if one.group is not None and one.layer == module}


QWEN_CONFIGS: dict[str, dict[str, Any]] = {
    "sound": qwen.config(*SOUND),
    "nothing ignored": qwen.config(),
    "head not ignored": qwen.config(*IGNORE),
    "class in ignore": qwen.config("Linear"),
    "parents in ignore": qwen.config(f"{LAYER}3.self_attn", "model.visual", "lm_head"),
    "anchored": qwen.config(r"re:model\.language_model.*", r"re:model\.visual.*"),
    "unanchored end": qwen.config(r"re:.*mlp.gate", "re:visual", "re:lm_head"),
    "experts by regex": qwen.config("re:.*mtp.*", group_0=group(r"re:.*mlp\.experts\..*")),
    "head by name": qwen.config(*IGNORE, group_0=group("Linear"), group_1=group("lm_head", bits=8)),
    "head by regex": qwen.config(*IGNORE, group_0=group("Linear"), group_1=group("re:.*lm_head$", bits=8)),
    "head first": qwen.config(*IGNORE, group_0=group("re:.*lm_head$", bits=8), group_1=group("Linear")),
    "name beats regex": qwen.config(
        group_0=group(r"re:.*self_attn.*"), group_1=group(f"{LAYER}3.self_attn.q_proj", bits=8)
    ),
    "two regexes": qwen.config(group_0=group(r"re:.*q_proj", bits=8), group_1=group(r"re:.*_proj")),
    "two regexes, the other way": qwen.config(group_0=group(r"re:.*_proj"), group_1=group(r"re:.*q_proj", bits=8)),
    "embedding": qwen.config("re:.*visual.*", group_0=group("Embedding", bits=8)),
    "embedding by regex": qwen.config("re:.*visual.*", group_0=group(r"re:.*embed_tokens")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("whole") / "model", qwen.entries(), qwen.CONFIG)


@pytest.mark.parametrize("name", QWEN_CONFIGS)
def test_the_same_modules_of_qwen_are_packed_by_the_same_groups(whole: Path, name: str) -> None:
    document = QWEN_CONFIGS[name]
    case = qwen.judged(survey(whole), document, "transformers")
    # position embeddings of vision towers have no linear layer's shape of use; no config packs them
    assert packed_by_us(case) == packed_by_transformers(document)


LLAMA_CONFIGS: dict[str, dict[str, Any]] = {
    "sound": quantization("lm_head"),
    "nothing ignored": quantization(),
    "bits by layer": quantization("lm_head", group_0=scheme(), group_1=group(r"re:.*layers\.1\..*", bits=8)),
    "exact names": quantization(group_0=group("model.layers.0.mlp.up_proj", "model.layers.1.self_attn.k_proj")),
}


@pytest.mark.parametrize("name", LLAMA_CONFIGS)
def test_the_same_modules_of_llama_are_packed_by_the_same_groups(tmp_path: Path, name: str) -> None:
    document = LLAMA | {"quantization_config": LLAMA_CONFIGS[name]}
    checkpoint = survey(write_checkpoint(tmp_path / "model", llama_entries(), document))
    case = Case(checkpoint, engines=("transformers",))
    assert packed_by_us(case) == packed_by_transformers(document)


@pytest.mark.parametrize("name", QWEN_CONFIGS)
def test_experts_are_unpacked_by_the_group_that_transformers_guesses(name: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig
    from transformers.integrations.compressed_tensors import get_experts_scheme

    data = QWEN_CONFIGS[name]["quantization_config"]
    config = QuantizationConfig.model_validate(deepcopy(data))
    guessed = get_experts_scheme(config)
    ours = experts_group(data)
    assert ours is not None
    assert config.config_groups[ours] is guessed


def test_packed_modules_load_into_transformers_where_we_say_so(tmp_path: Path) -> None:
    """One real load: no weight missing or left over but for what was declared ignored."""
    from transformers import AutoModelForCausalLM

    entries = pack(llama_entries(), is_layer_linear)
    sound = LLAMA | {"quantization_config": quantization("lm_head")}
    head_open = LLAMA | {"quantization_config": quantization()}
    for name, document, wrong in (("sound", sound, set()), ("open", head_open, {"lm_head"})):
        folder = write_checkpoint(tmp_path / name, entries, document)
        _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        astray = {key.rpartition(".")[0] for key in info["missing_keys"]}
        assert astray == wrong == set(qwen.astray(Case(survey(folder), engines=("transformers",))))
        assert json.loads((folder / "config.json").read_text()) == document
    assert entries_of(tmp_path / "sound").keys() == entries.keys()
