"""Costs beside transformers' own models: what they hold, what a token touches, and what their caches keep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from building import Entries
from costing import sparse
from test_families import CASE_IDS, CASES, SMALL_GDN, SMALL_MOE, SMALL_TEXT, live_model, live_shapes

from checkpoint.families import load_family
from costs import Costs, costs

# One token of context for the cache of each, in the model's own dtype.
TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", SMALL_TEXT),
    ("qwen3", SMALL_TEXT),
    ("qwen3_moe", SMALL_MOE | {"mlp_only_layers": [1]}),
    ("qwen3_next", SMALL_GDN),
    ("qwen3_5_moe", SMALL_GDN),
]


def stored(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """config.json for a model of transformers, which leaves out the MTP layers it does not build."""
    spare: dict[str, Any] = {"num_nextn_predict_layers": 0} if name == "qwen3_next" else {}
    return {"model_type": name, "dtype": "bfloat16"} | config | spare


def costs_of(folder: Path, name: str, config: dict[str, Any], model: Any) -> Costs:
    """The costs of a dense checkpoint with the names and shapes of `model`."""
    entries: Entries = {key: ("BF16", shape, None) for key, shape in live_shapes(model).items()}
    return costs(sparse(folder, entries, stored(name, config)), context=0)


@pytest.mark.parametrize(("name", "config"), CASES, ids=CASE_IDS)
def test_weights_and_what_a_token_reads_are_those_of_the_live_model(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    import torch

    model = live_model(name, config)
    one = costs_of(tmp_path / "model", name, config, model)
    text = config.get("text_config", config)
    tables = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    table = next(weight for weight in tables if weight.shape[0] == text["vocab_size"])
    values = {key: 2 * parameter.numel() for key, parameter in model.named_parameters()}
    logs = sum(size for key, size in values.items() if key.endswith("A_log"))
    assert one.weights == sum(values.values()) + logs
    routed = sum(size for key, size in values.items() if re.search(r"\.experts\.", key))
    unread = sum(size for key, size in values.items() if ".visual." in key)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    unread += 0 if tied else 2 * table.numel() - 2 * table.shape[1]
    assert one.plain is not None
    active = routed * text.get("num_experts_per_tok", 0) // text.get("num_experts", 1)
    assert sum(one.plain.weights().values()) == one.weights - unread - routed + active


@pytest.mark.parametrize(("name", "config"), TEXTS, ids=[name for name, _ in TEXTS])
def test_caches_are_as_large_as_those_that_a_model_fills(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """vLLM keeps one column less of the convolution's window than transformers: the newest is in the step itself."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    own = CONFIG_MAPPING[name]().get_text_config().__class__(**config)
    model = AutoModelForCausalLM.from_config(own, dtype=torch.float32).eval()
    tokens = 7
    with torch.no_grad():
        cache = model(input_ids=torch.arange(tokens)[None], use_cache=True).past_key_values
    keys = [layer.keys.numel() + layer.values.numel() for layer in cache.layers if hasattr(layer, "keys")]
    windows = [state for layer in cache.layers for state in getattr(layer, "conv_states", {}).values()]
    states = [state for layer in cache.layers for state in getattr(layer, "recurrent_states", {}).values()]

    whole = {"text_config": config} if load_family(name).text_config else config
    checkpoint = sparse(tmp_path / "model", {"model.norm.weight": ("BF16", (48,), None)}, stored(name, whole))
    kept = costs(checkpoint).caches
    assert kept is not None
    assert kept.kv_token * tokens == 2 * sum(keys)
    assert kept.state == 2 * sum(w.numel() // w.shape[-1] * (w.shape[-1] - 1) for w in windows) + 2 * sum(
        state.numel() for state in states
    )
    assert bool(states) == (name in ("qwen3_next", "qwen3_5_moe"))


@pytest.mark.parametrize(("name", "config"), CASES, ids=CASE_IDS)
def test_every_matrix_is_divided_over_ranks_but_routers_and_a_projection_of_patches(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    family = load_family(name)
    assert family.decoding is not None
    parallel = family.decoding.parallel
    spec = family.spec(stored(name, config))
    for tensor in spec.tensors().values():
        module = tensor.name.removesuffix(".weight").removesuffix(".bias")
        ways = [one for one in (parallel.rows, parallel.columns) if one.fullmatch(module)]
        norm = "norm" in module.rpartition(".")[2]
        whole = norm or tensor.kind == "router" or module.endswith(("patch_embed.proj", "pos_embed"))
        assert len(ways) == (0 if whole else 1), module
