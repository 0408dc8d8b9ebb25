"""Tensors missing, besides, misshapen or misnamed."""

from __future__ import annotations

from defects.build import Build, Defect, Edit, add, both, defects, drop, ignoring, recast, rename, setting, unset
from defects.sound import BODY, COUNT, DENSE, EXPERTS, GPTQ, HIDDEN, INTERMEDIATE, LAYERS, TEXT, moe_weights

MLP = "model.layers.0.mlp."


UP = f"{MLP}up_proj"


EXPERT = f"{LAYERS}0.mlp.experts.1."


OWNER = f"{LAYERS}0.mlp.experts"


VISION = "model.visual."


ATTENTION = f"{LAYERS}1.self_attn."


LINEAR = f"{LAYERS}0.linear_attn."


def fused(layer: int) -> Edit:
    """The experts of a layer as the base has them: fused and dense."""

    def edit(build: Build) -> None:
        owner = f"{LAYERS}{layer}.mlp.experts"
        drop(owner)(build)
        for leaf in ("gate_up_proj", "down_proj"):
            tensor = moe_weights()[f"{owner}.{leaf}"]
            build.entries[f"{owner}.{leaf}"] = ("BF16", tuple(tensor.shape), None)

    return edit


def packed_under_fused_names(separator: str) -> Edit:
    """A layer's experts in one 3-D packed parameter each."""

    def edit(build: Build) -> None:
        drop(OWNER)(build)
        for leaf in ("gate_up_proj", "down_proj"):
            rows, columns = (2 * INTERMEDIATE, HIDDEN) if leaf == "gate_up_proj" else (HIDDEN, INTERMEDIATE)
            name = f"{OWNER}.{leaf}{separator}"
            build.entries[f"{name}packed"] = ("I32", (COUNT, rows, columns // 8), None)
            build.entries[f"{name}scale"] = ("BF16", (COUNT, rows, columns // 32), None)

    return edit


def retyped(build: Build) -> None:
    """Both layers said to be of linear attention."""
    build.config["text_config"]["layer_types"] = ["linear_attention", "linear_attention"]


def tied(build: Build) -> None:
    build.config["tie_word_embeddings"] = build.config["text_config"]["tie_word_embeddings"] = True


def copy_expert(build: Build, source: int, target: int) -> None:
    inside = f"{OWNER}.{source}."
    copies = {n.replace(inside, f"{OWNER}.{target}."): e for n, e in build.entries.items() if n.startswith(inside)}
    build.entries |= copies


MISSING = [
    *defects(
        "I01",
        DENSE,
        {
            "the last norm": drop("model.norm.weight"),
            "the embedding": drop("model.embed_tokens.weight"),
            "a norm of a layer": drop("model.layers.1.input_layernorm.weight"),
            "a packed projection, all parts": drop("model.layers.0.self_attn.k_proj"),
        },
    ),
    *defects(
        "I01",
        BODY,
        {
            "the router of a layer": drop(f"{LAYERS}0.mlp.gate.weight"),
            "the gate of the shared expert": drop(f"{LAYERS}1.mlp.shared_expert_gate.weight"),
            "the state A_log": drop(f"{LINEAR}A_log"),
            "dt_bias": drop(f"{LINEAR}dt_bias"),
            "the convolution": drop(f"{LINEAR}conv1d.weight"),
            "half of the first norms": drop(f"{LAYERS}0.input_layernorm.weight"),
            "q_norm": drop(f"{ATTENTION}q_norm.weight"),
            "one of the vision tower's biases": drop(f"{VISION}blocks.0.attn.qkv.bias"),
        },
    ),
    *defects(
        "I01",
        EXPERTS,
        {
            "all experts of a layer": drop(OWNER),
            "a shared expert": drop(f"{LAYERS}0.mlp.shared_expert.down_proj.weight"),
        },
    ),
    *defects("I01", GPTQ, {"a norm that only the base tells of": drop(f"{LINEAR}norm.weight")}, based=True),
    *defects(
        "I02",
        DENSE,
        {
            "padded embedding": recast("model.embed_tokens.weight", shape=(128, 128)),
            "a norm of half the size": recast("model.norm.weight", shape=(64,)),
            "a transposed head": recast("lm_head.weight", shape=(128, 64)),
        },
    ),
    *defects(
        "I02",
        EXPERTS,
        {
            "router of fewer experts": recast(f"{LAYERS}0.mlp.gate.weight", shape=(2, HIDDEN)),
            "convolution without its middle dimension": recast(f"{LINEAR}conv1d.weight", shape=(256, 4)),
            "attention without output gate": recast(f"{ATTENTION}q_proj.weight", shape=(128, HIDDEN)),
            "a scalar gate as a vector": recast(f"{LAYERS}0.mlp.shared_expert_gate.weight", shape=(HIDDEN,)),
        },
    ),
    *defects(
        "I03",
        EXPERTS,
        {
            "state in F16": recast(f"{LINEAR}A_log", "F16"),
            "a norm in F32": recast(f"{LAYERS}0.input_layernorm.weight", "F32"),
            "the router in F16": recast(f"{LAYERS}1.mlp.gate.weight", "F16"),
        },
        based=True,
    ),
    *defects("I03", DENSE, {"a norm as integers": recast("model.norm.weight", "I8")}),
]


EXPERT_DEFECTS = [
    *defects(
        "I04",
        EXPERTS,
        {
            "one expert, all projections": drop(f"{OWNER}.1"),
            "the last expert": drop(f"{OWNER}.2"),
            "one projection": drop(f"{EXPERT}up_proj"),
            "one projection of every expert": drop(*(f"{OWNER}.{e}.down_proj" for e in range(COUNT))),
            "an expert too many": lambda build: copy_expert(build, 1, 3),
            "a projection that no expert has": add(f"{OWNER}.0.router_proj.weight"),
            "experts counted from 1": rename(lambda n: n.replace(f"{OWNER}.2.", f"{OWNER}.3.")),
        },
    ),
    *defects("I04", BODY, {"an expert that only the base tells of": drop(f"{OWNER}.1")}, based=True),
    *defects(
        "I05",
        EXPERTS,
        {
            "fused parameters left beside the experts": both(
                add(f"{OWNER}.gate_up_proj", shape=(COUNT, 2 * INTERMEDIATE, HIDDEN)),
                add(f"{OWNER}.down_proj", shape=(COUNT, HIDDEN, INTERMEDIATE)),
            ),
            "one fused parameter left": add(f"{OWNER}.down_proj", shape=(COUNT, HIDDEN, INTERMEDIATE)),
        },
    ),
    *defects("I06", EXPERTS, {"a layer left fused and dense": fused(1)}, also=("C07",)),
    *defects(
        "I06",
        EXPERTS,
        {"the first layer left fused, and ignored": both(fused(0), ignoring(r"re:.*model\.layers\.0\.mlp\.experts.*"))},
    ),
    *defects(
        "I06",
        GPTQ,
        {
            "a layer left fused and dense": both(
                fused(0), lambda b: b.quantization["ignore"].append("re:.*layers.0.mlp.experts.*")
            )
        },
    ),
    *defects(
        "I07",
        EXPERTS,
        {
            "experts packed in 3-D": packed_under_fused_names("_"),
            "experts packed in 3-D, with weight_": packed_under_fused_names(".weight_"),
        },
    ),
    *defects(
        "I08",
        DENSE,
        {
            "config counts one layer more": setting("num_hidden_layers", value=3),
            "config counts one layer less": setting("num_hidden_layers", value=1),
        },
    ),
    *defects(
        "I08",
        BODY,
        {
            "another type of attention in config": retyped,
            "a layer lost": drop(f"{LAYERS}1"),
        },
    ),
    *defects(
        "I09",
        EXPERTS,
        {
            "no vision tower": drop("model.visual"),
            "config without vision": both(unset("vision_config"), lambda b: b.files.pop("preprocessor_config.json")),
            "the text-only class": setting("architectures", value=["Qwen3_5MoeForCausalLM"]),
        },
    ),
    *defects("I10", DENSE, {"no head, not tied": drop("lm_head.weight")}),
    *defects("I10", BODY, {"no packed head, not tied": drop("lm_head")}),
    *defects("I10", BODY, {"a packed head, tied": tied}),
    *defects(
        "I11",
        DENSE,
        {
            "g_idx of older GPTQ": add(f"{UP}.weight_g_idx", "I32", (128,)),
            "an activation scale": add(f"{UP}.input_scale", "BF16", (1,)),
            "an observer's state": add(f"{UP}.weight_observer.min_val", "F32", (1,)),
            "inverse frequencies": add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (16,)),
            "a scale of the KV cache": add("model.layers.0.self_attn.k_scale", "BF16", (1,)),
            "a bias the model has not": add("model.layers.0.mlp.up_proj.bias", "BF16", (256,)),
            "a tensor of another model": add("model.layers.0.cross_attn.q_proj.weight", "BF16", (128, 128)),
        },
    ),
    *defects(
        "I11",
        BODY,
        {
            "a global scale": add(f"{EXPERT}up_proj.input_global_scale", "F32", (1,)),
            "in_proj_qkvz fused in the file": add(f"{LINEAR}in_proj_qkvz.weight", "BF16", (384, HIDDEN)),
            "an unknown module in a layer": add(f"{LAYERS}0.mlp.extra_norm.weight"),
        },
    ),
    *defects("I11", BODY, {"a tensor that the base has not": add(f"{TEXT}extra.weight")}, based=True),
]

ALL: list[Defect] = [*MISSING, *EXPERT_DEFECTS]
