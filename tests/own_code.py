"""The code by which vLLM and SGLang match a config with their layers, asked layer by layer, without a GPU.

What an engine calls a layer, its class and its modules stand in the tables; what becomes of it the engine says.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from copy import deepcopy
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import qwen
from qwen import DRAFT, LAYER

if TYPE_CHECKING:
    import torch

EXPERTS = [f"experts.{expert}.{part}_proj" for expert in range(qwen.EXPERTS) for part in ("gate", "up", "down")]


class Layer(NamedTuple):
    """A layer that an engine builds: its name and class there, and the modules of the checkpoint that it holds."""

    scope: str
    name: str
    kind: str
    modules: tuple[str, ...]


class Verdict(NamedTuple):
    """What becomes of a layer: `ignored`, `unmatched`, `error`, or `packed` by a target to so many bits."""

    state: str
    target: str | None = None
    bits: int | None = None


def of_layer(scope: str, stored: str, name: str, experts: str, attention: bool) -> Iterator[Layer]:
    """The layers of one transformer layer; `stored` and `name` are its prefixes in the checkpoint and the engine."""
    column, row = "MergedColumnParallelLinear", "RowParallelLinear"
    parts: dict[str, tuple[str, list[str]]] = {
        "mlp.shared_expert.gate_up_proj": (column, ["gate_proj", "up_proj"]),
        "mlp.shared_expert.down_proj": (row, ["down_proj"]),
        "mlp.experts": (experts, EXPERTS),
    }
    if attention:
        parts["self_attn.qkv_proj"] = ("QKVParallelLinear", ["q_proj", "k_proj", "v_proj"])
        parts["self_attn.o_proj"] = (row, ["o_proj"])
    else:
        parts["linear_attn.in_proj_qkvz"] = (column, ["in_proj_qkv", "in_proj_z"])
        parts["linear_attn.in_proj_ba"] = (column, ["in_proj_b", "in_proj_a"])
        parts["linear_attn.out_proj"] = (row, ["out_proj"])
    for layer, (kind, shards) in parts.items():
        parent = layer.rpartition(".")[0]
        yield Layer(scope, name + layer, kind, tuple(f"{stored}{parent}.{shard}" for shard in shards))


def text_layers(name: str, experts: str) -> list[Layer]:
    return [
        *of_layer("main", f"{LAYER}0.", f"{name}0.", experts, attention=False),
        *of_layer("main", f"{LAYER}3.", f"{name}3.", experts, attention=True),
        *of_layer("draft", DRAFT, DRAFT, experts, attention=True),
    ]


VISION = {
    "blocks.0.attn.qkv": "QKVParallelLinear",
    "blocks.0.attn.proj": "RowParallelLinear",
    "blocks.0.mlp.linear_fc1": "ColumnParallelLinear",
    "blocks.0.mlp.linear_fc2": "RowParallelLinear",
    "merger.linear_fc1": "ColumnParallelLinear",
    "merger.linear_fc2": "RowParallelLinear",
}
HEAD = "ParallelLMHead"
VLLM_LAYERS = [
    *text_layers("language_model.model.layers.", "RoutedExperts"),
    Layer("main", "language_model.lm_head", HEAD, ("lm_head",)),
    *(Layer("main", f"visual.{name}", kind, (f"model.visual.{name}",)) for name, kind in VISION.items()),
    Layer("draft", "mtp.fc", "ColumnParallelLinear", ("mtp.fc",)),
    Layer("draft", "lm_head", HEAD, ("lm_head",)),
]
SGLANG_LAYERS = [
    *text_layers(LAYER, "FusedMoE"),
    Layer("main", "lm_head", HEAD, ("lm_head",)),
    Layer("draft", "lm_head", HEAD, ("lm_head",)),
]


def standing_in(kind: str) -> torch.nn.Module:
    """A module of a class of that name: all that the engines' matching asks of it."""
    import torch

    module: torch.nn.Module = type(kind, (torch.nn.Module,), {})()
    return module


class Own:
    """An engine's own `CompressedTensorsConfig` of one scope, asked layer by layer."""

    def __init__(self, engine: ModuleType, config: Any) -> None:
        self.engine, self.config = engine, config
        self.written = {id(scheme): target for target, scheme in config.target_scheme_map.items()}

    def verdict(self, layer: Layer) -> Verdict:
        module, name = standing_in(layer.kind), layer.name
        try:
            if name.endswith(".experts"):
                self.check_experts(module, name)
                name += ".0.gate_proj"
            return self.look_up(module, name)
        except ValueError:
            return Verdict("error")

    def look_up(self, module: torch.nn.Module, name: str) -> Verdict:
        ignore, mapping = self.config.ignore, self.config.packed_modules_mapping
        if self.engine.should_ignore_layer(name, ignore=ignore, fused_mapping=mapping):
            return Verdict("ignored")
        return self.packed(self.config.get_scheme_dict(module, name))

    def packed(self, scheme: Any) -> Verdict:
        return (
            Verdict("packed", self.written[id(scheme)], scheme["weights"].num_bits) if scheme else Verdict("unmatched")
        )

    def check_experts(self, module: torch.nn.Module, name: str) -> None:
        """Raises ValueError if the engine finds that the projections differ, or one without a target.

        Past that check the engine builds its method, for which a stand-in has no sizes: AttributeError.
        """
        try:
            self.build_experts(module, name)
        except AttributeError:
            return

    def build_experts(self, module: torch.nn.Module, name: str) -> Any:
        raise NotImplementedError


class OwnVllm(Own):
    def build_experts(self, module: torch.nn.Module, name: str) -> Any:
        return self.engine.CompressedTensorsMoEMethod.get_moe_method(self.config, module, name)


class OwnSglang(Own):
    def verdict(self, layer: Layer) -> Verdict:
        return self.head(layer) if layer.kind == HEAD else super().verdict(layer)

    def head(self, layer: Layer) -> Verdict:
        """What `get_lm_head_scheme` hands on, in place of the kernel that it would choose on a GPU."""
        config, module = self.config, standing_in(HEAD)
        if self.engine.should_ignore_layer(layer.name, config.ignore, config.packed_modules_mapping):
            return Verdict("ignored")
        config.get_linear_scheme = lambda layer, layer_name, matched_target: config.target_scheme_map[matched_target]
        return self.packed(config.get_lm_head_scheme(module, layer.name))

    def build_experts(self, module: torch.nn.Module, name: str) -> Any:
        return self.config.get_moe_scheme(module, name)


def own_vllm(quantization: dict[str, Any], scope: str) -> Own:
    """As vLLM prepares its config: the model class tells its names and its fused layers."""
    models = "vllm.model_executor.models.qwen3_5"
    engine = importlib.import_module("vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors")
    config = engine.CompressedTensorsConfig.from_config(deepcopy(quantization))
    own = OwnVllm(engine, config)
    if scope == "main":
        model = importlib.import_module(models).Qwen3_5MoeForConditionalGeneration
        config.apply_vllm_mapper(model.hf_to_vllm_mapper)
    else:
        model = importlib.import_module(f"{models}_mtp").Qwen3_5MoeMTP
    config.packed_modules_mapping = model.packed_modules_mapping
    return own


def own_sglang(quantization: dict[str, Any], scope: str) -> Own:
    """As SGLang prepares its config: names as in the checkpoint, the fused layers told by the model class."""
    models = importlib.import_module(
        "sglang.srt.models.qwen3_5" if scope == "main" else "sglang.srt.models.qwen3_5_mtp"
    )
    model = models.Qwen3_5MoeForConditionalGeneration if scope == "main" else models.Qwen3_5ForCausalLMMTP
    engine = importlib.import_module("sglang.srt.layers.quantization.compressed_tensors.compressed_tensors")
    document = deepcopy(quantization) | {"packed_modules_mapping": model.packed_modules_mapping}
    return OwnSglang(engine, engine.CompressedTensorsConfig.from_config(document))


OWN = {"vllm": (own_vllm, VLLM_LAYERS), "sglang": (own_sglang, SGLANG_LAYERS)}
"""Engine -> how its config of one scope is prepared (ImportError where it is not installed), and its layers."""
