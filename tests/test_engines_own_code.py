"""Engines: our resolvers against the engines' own matching code, where vLLM or SGLang can be imported (no GPU needed).

`docs/engines.md` names the packages that make these tests run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest
import qwen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_code import HEAD, OWN, SGLANG_LAYERS, VLLM_LAYERS, Layer, Verdict
from qwen import DRAFT, IGNORE, LAYER, SOUND, group

from checkpoint import Checkpoint
from verify.engines import Resolved, Slot, config_groups, load_engine, resolve, slots

EXAMPLES = 500


def installed(name: str) -> str:
    """`NAME@VERSION` of an engine that imports here; else the test is skipped."""
    try:
        OWN[name][0](qwen.config()["quantization_config"], "main")
    except ImportError as error:
        pytest.skip(f"{name} does not import here: {error}")
    numbers = re.match(r"\d+(\.\d+)*", version(name))
    return f"{name}@{numbers[0] if numbers else ''}"


@pytest.fixture(scope="module", params=sorted(OWN))
def comparison(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """All experts stored one by one, in the draft head, too."""
    engine = installed(request.param)
    checkpoint = qwen.stored(tmp_path_factory.mktemp("own") / "model", lambda module: ".mlp.experts." in module)
    return Comparison(engine, checkpoint, slots(qwen.judged(checkpoint, qwen.config())))


def ours(resolved: Resolved, layer: Layer, bits: dict[str, int]) -> Verdict:
    """What we say of the modules in a layer; of all the same, and under the engine's name of the layer."""
    held = resolved.main if layer.scope == "main" else resolved.draft
    found = [held[module] for module in layer.modules]
    assert {one.layer for one in found} == {layer.name}
    if any((error.scope, error.layer) == (layer.scope, layer.name) for error in resolved.errors):
        return Verdict("error")
    (verdict,) = {
        Verdict("packed", one.entry, bits[one.group])
        if one.group
        else Verdict("ignored" if one.ignored else "unmatched")
        for one in found
    }
    return verdict


@dataclass(frozen=True, repr=False)
class Comparison:
    """An installed engine and one checkpoint, to be read under any config."""

    engine: str
    checkpoint: Checkpoint
    known: tuple[Slot, ...]

    def hold(self, document: dict[str, Any]) -> None:
        """Every layer of both scopes: the engine's verdict is ours."""
        build, layers = OWN[self.engine.partition("@")[0]]
        quantization = document["quantization_config"]
        bits = {name: one["weights"]["num_bits"] for name, one in config_groups(quantization).items()}
        case = qwen.judged(self.checkpoint, document, self.engine)
        resolved = resolve(load_engine(self.engine), case, self.known)
        for scope in ("main", "draft"):
            own = build(quantization, scope)
            expected = {layer.name: own.verdict(layer) for layer in layers if layer.scope == scope}
            found = {layer.name: ours(resolved, layer, bits) for layer in layers if layer.scope == scope}
            assert found == expected


def explicit(*parts: str) -> list[str]:
    """The checkpoint's names of the modules that contain one of `parts`, as oneshot writes an ignore list."""
    names = dict.fromkeys(module for layer in VLLM_LAYERS for module in layer.modules)
    return [name for name in names if any(part in name for part in parts)]


NO_FORMAT = {key: value for key, value in group("Linear").items() if key != "format"}
SHORT = group("Linear") | {"weights": {"num_bits": 4, "group_size": 32}}
HEAD_GROUP = {"group_1": group("re:.*lm_head$", bits=8, group_size=None)}
BOTH = {"group_0": group("Linear"), **HEAD_GROUP}

SPELLINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "sound": (SOUND, {}),
    "draft-anchored": ((*IGNORE, "re:^mtp.*", "lm_head"), {}),
    "draft-prefix": ((*IGNORE, "re:mtp.*"), {}),
    "draft-plain": ((*IGNORE, "mtp", "lm_head"), {}),
    "draft-parent": ((*IGNORE, "mtp.fc", f"{DRAFT}mlp.experts", "lm_head"), {}),
    "draft-explicit": ((*IGNORE, *explicit("mtp."), "lm_head"), {}),
    "draft-not-ignored": ((*IGNORE, "lm_head"), {}),
    "draft-some-literals": ((*IGNORE, "mtp.fc", *(f"{DRAFT}self_attn.{part}_proj" for part in "qkv")), {}),
    "explicit": ((*explicit("_attn", "visual", "shared_expert"), "re:.*mtp.*", "lm_head"), {}),
    "checkpoint-regex": ((r"re:model\.language_model.*self_attn.*", r"re:model\.visual.*", "re:.*mtp.*"), {}),
    "caret-regex": ((r"re:^model\..*", "re:^lm_head$"), {}),
    "targets-anchored": (SOUND, {"group_0": group(r"re:model\.language_model.*experts.*")}),
    "visual-not-ignored": ((*IGNORE[:4], "re:.*mtp.*", "lm_head"), {}),
    "head-regex": ((*IGNORE, "re:.*mtp.*"), BOTH),
    "head-first": ((*IGNORE, "re:.*mtp.*"), {**HEAD_GROUP, "group_0": group("Linear")}),
    "head-plain": ((*IGNORE, "re:.*mtp.*"), {"group_0": group("Linear"), "group_1": group("lm_head", bits=8)}),
    "head-vllm": ((*IGNORE,), {"group_0": group("Linear"), "group_1": group("language_model.lm_head", bits=8)}),
    "head-ignored-too": ((*IGNORE, "lm_head"), BOTH),
    "head-class": ((*IGNORE,), {"group_0": group("Linear", "ParallelLMHead")}),
    "shards-torn": ((*SOUND[:1], r"re:.*in_proj_(qkv|a|b)$", *SOUND[2:]), {}),
    "shards-in-two-groups": ((), {"group_0": group("Linear"), "group_1": group(r"re:.*\.[qkv]_proj$", bits=8)}),
    "one-shard-targeted": ((), {"group_0": group(r"re:.*\.q_proj$"), "group_1": group("re:.*o_proj", bits=8)}),
    "fused-name-ignored": ((r"re:.*qkv_proj$", f"{LAYER}3.self_attn.qkv_proj"), {}),
    "suffix": (("self_attn.o_proj", "gate_proj", "shared_expert.up_proj", "re:.*mtp.*"), {}),
    "gate-too-wide": ((*SOUND, "re:.*gate.*"), {}),
    "experts-but-0": ((*SOUND, r"re:.*experts\.[1-3]\..*"), {}),
    "expert-0-torn": ((*SOUND, f"{LAYER}0.mlp.experts.0.gate_proj"), {}),
    "expert-0-in-two": (SOUND, {"group_0": group("Linear"), "group_1": group("re:.*experts.*down_proj", bits=8)}),
    "experts-in-two-alike": (SOUND, {"group_0": NO_FORMAT, "group_1": group("re:.*experts.*down_proj")}),
    "one-projection-untargeted": ((*SOUND, "re:.*gate_proj"), {"group_0": group("re:.*experts.*down_proj")}),
    "experts-ignored-or-untargeted": (
        ("re:.*gate_proj", "re:.*mtp.*"),
        {"group_0": group(r"re:.*shared_expert.*", "re:.*_attn.*", "re:.*visual.*")},
    ),
    "experts-in-two-spelled-out": (SOUND, {"group_0": SHORT, "group_1": group("re:.*experts.*down_proj")}),
    "experts-class": (SOUND, {"group_0": group("RoutedExperts", "FusedMoE"), "group_1": group("Linear", bits=8)}),
    "experts-only": (("re:.*mtp.*",), {"group_0": group(r"re:.*mlp\.experts\..*")}),
    "repeated-target": (SOUND, {"group_0": group("Linear"), "group_1": group("Linear", bits=8)}),
    "two-spellings": (
        (),
        {
            "group_0": group(f"{LAYER}3.self_attn.o_proj"),
            "group_1": group("language_model.model.layers.3.self_attn.o_proj", "Linear", bits=8),
        },
    ),
    "attention-class": (SOUND, {"group_0": group("Linear"), "group_1": group("Qwen3_5Attention", bits=8)}),
    "lower-case": (SOUND, {"group_0": group("linear"), "group_1": group("qkvparallellinear", bits=8)}),
}


@pytest.mark.parametrize("ignore, groups", SPELLINGS.values(), ids=SPELLINGS)
def test_each_spelling_means_what_the_engine_takes_it_for(
    comparison: Comparison, ignore: tuple[str, ...], groups: dict[str, Any]
) -> None:
    comparison.hold(qwen.config(*ignore, **groups))


CLASSES = ["Linear", "linear", "QKVParallelLinear", "RowParallelLinear", "RoutedExperts", "FusedMoE", HEAD]
PLAIN = ["lm_head", "mtp", "o_proj", "self_attn.o_proj", "attn.qkv", "shared_expert.up_proj", f"{DRAFT}mlp.experts"]
REGEXES = [
    *("re:.*mtp.*", "re:^mtp.*", "re:.*lm_head$", "re:^lm_head$", "re:.*visual.*", "re:.*Linear", "re:.*gate.*"),
    *("re:.*self_attn.*", "re:.*_attn.*", r"re:.*\.[qkv]_proj$", "re:.*q_proj$", "re:.*qkv_proj$", "re:.*qkv"),
    *("re:.*in_proj_(qkv|z)$", "re:.*in_proj_[ab]$", "re:.*in_proj_z", "re:.*shared_expert.*", "re:.*up_proj"),
    *("re:.*experts.*", r"re:.*experts\.0\..*", "re:.*experts.*down_proj", r"re:.*experts\.[1-3].*"),
    *(r"re:model\.visual.*", r"re:model\.language_model.*", "re:language_model.*", r"re:.*layers\.3\..*"),
]
NAMES = sorted(
    {module for layer in VLLM_LAYERS for module in layer.modules if ".experts." not in module or ".0." in module}
    | {layer.name for layer in (*VLLM_LAYERS, *SGLANG_LAYERS)}
)
ENTRIES = st.one_of(*(st.sampled_from(pool) for pool in (CLASSES, PLAIN, REGEXES, NAMES)))


@st.composite
def quantizations(draw: st.DrawFn) -> dict[str, Any]:
    """A config.json with any few entries in one to three groups, two of which pack alike."""
    ignore = draw(st.lists(ENTRIES, max_size=5))
    groups = {}
    for number, bits in enumerate(draw(st.sampled_from([(4,), (4, 8), (4, 8, 4)]))):
        targets = draw(st.lists(ENTRIES, min_size=1, max_size=4))
        full = group(*targets, bits=bits) | {"format": draw(FORMATS)}
        groups[f"group_{number}"] = draw(
            st.sampled_from([full, full | {"weights": {"num_bits": bits, "group_size": 32}}])
        )
    return qwen.config(*ignore, **groups)


FORMATS = st.sampled_from(["pack-quantized", None])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(document=quantizations())
def test_any_list_of_targets_and_ignores_means_what_the_engine_takes_it_for(
    comparison: Comparison, document: dict[str, Any]
) -> None:
    comparison.hold(document)
