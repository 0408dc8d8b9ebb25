"""The ignore list: the four edits and what each refuses, and the list that is derived from what is stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, is_layer_linear, llama_entries, pack, quantization, scheme, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen import body_experts, config, entries
from writing import codes, config_of, drafted, written

from checkpoint import Draft
from surgery import Group, Scheme, add_ignore, derive, graft_mtp, int8_head, quantize, remove_ignore, set_ignore
from surgery.deriving import derive_ignore
from surgery.ignore import coverage

LAYERS = "model.language_model.layers."
BODY_EXPERTS = r"re:model.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
BODY = (BODY_EXPERTS, r"re:model.*self_attn\..*_proj$", r"re:model.*\.(in_proj_qkv|in_proj_z|out_proj)$")


def packed_llama(folder: Path, *ignore: str, targets: tuple[str, ...] = ("Linear",), **changes: Any) -> Path:
    """A Llama whose layers are packed and whose head is dense; `changes` go into its quantization_config."""
    found = pack(llama_entries(), is_layer_linear)
    group = scheme() | {"targets": list(targets)}
    return write_checkpoint(folder, found, LLAMA | {"quantization_config": quantization(*ignore, g=group) | changes})


def ignored(draft: Draft) -> list[str]:
    found: list[str] = draft.config.value["quantization_config"]["ignore"]
    return found


# edits


def test_add_puts_entries_behind_those_that_stand(tmp_path: Path) -> None:
    draft = drafted(packed_llama(tmp_path / "a", "lm_head"), partial(add_ignore, entries=["re:.*embed.*", "lm_head"]))
    assert codes(draft) == []
    assert ignored(draft) == ["lm_head", "re:.*embed.*"]


def test_add_mends_a_list_that_lacks_more_than_what_is_added(tmp_path: Path) -> None:
    """The head is uncovered before and after: no reason to refuse another entry."""
    draft = drafted(packed_llama(tmp_path / "a"), partial(add_ignore, entries=["re:.*embed.*"]))
    assert codes(draft) == []


def test_remove_takes_entries_out(tmp_path: Path) -> None:
    draft = drafted(packed_llama(tmp_path / "a", "lm_head", "re:.*norm"), partial(remove_ignore, entries=["re:.*norm"]))
    assert codes(draft) == []
    assert ignored(draft) == ["lm_head"]


def test_remove_takes_out_an_entry_that_is_no_regular_expression(tmp_path: Path) -> None:
    draft = drafted(packed_llama(tmp_path / "a", "lm_head", "re:("), partial(remove_ignore, entries=["re:("]))
    assert codes(draft) == []
    assert ignored(draft) == ["lm_head"]


def test_set_replaces_the_list_and_only_the_config_is_written(tmp_path: Path) -> None:
    source = packed_llama(tmp_path / "a", "lm_head")
    out = written(source, tmp_path / "out", partial(set_ignore, entries=["re:.*lm_head$"]))
    assert config_of(out)["quantization_config"]["ignore"] == ["re:.*lm_head$"]
    for shard in source.glob("*.safetensors"):
        assert (out / shard.name).read_bytes() == shard.read_bytes()
    before, after = ((folder / "config.json").read_text() for folder in (source, out))
    assert after == before.replace('"lm_head"', '"re:.*lm_head$"')


def test_a_null_list_is_an_empty_one(tmp_path: Path) -> None:
    source = packed_llama(tmp_path / "a", ignore=None)
    assert ignored(drafted(source, partial(add_ignore, entries=["lm_head"]))) == ["lm_head"]
    assert coverage(drafted(source)) == {}


REFUSED: dict[str, tuple[tuple[str, ...], Callable[[Draft], Draft], str, list[str]]] = {
    "set: a packed module covered": (
        ("lm_head",),
        partial(set_ignore, entries=["lm_head", r"re:.*mlp\.up_proj$"]),
        "ignore-covers-packed",
        ["model.layers.{0-1}.mlp.up_proj", r"'re:.*mlp\.up_proj$'"],
    ),
    "add: a packed module covered": (
        ("lm_head",),
        partial(add_ignore, entries=["re:.*q_proj"]),
        "ignore-covers-packed",
        ["model.layers.{0-1}.self_attn.q_proj"],
    ),
    "set: a dense module uncovered": (
        ("lm_head",),
        partial(set_ignore, entries=["re:.*norm"]),
        "ignore-lacks-dense",
        ["lm_head", "'Linear'", "derive"],
    ),
    "remove: a dense module uncovered": (
        ("lm_head", "re:.*norm"),
        partial(remove_ignore, entries=["lm_head"]),
        "ignore-lacks-dense",
        ["lm_head", "'Linear'"],
    ),
    "remove: no such entry": (
        ("lm_head",),
        partial(remove_ignore, entries=["re:.*lm_head$"]),
        "entry-absent",
        ["'re:.*lm_head$'", "show"],
    ),
    "add: no regular expression": (("lm_head",), partial(add_ignore, entries=["re:*x"]), "pattern-invalid", ["re:*x"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_edits_that_contradict_what_is_stored_are_refused(case: str, tmp_path: Path) -> None:
    before, operation, code, words = REFUSED[case]
    draft = drafted(packed_llama(tmp_path / "a", *before), operation)
    assert codes(draft) == [code]
    assert [word for word in words if word not in str(draft.problems[0])] == []
    assert ignored(draft) == list(before)


def test_a_dense_module_that_no_target_reaches_may_stay_uncovered(tmp_path: Path) -> None:
    source = packed_llama(tmp_path / "a", "lm_head", targets=(r"re:.*layers\..*_proj$",))
    assert codes(drafted(source, partial(remove_ignore, entries=["lm_head"]))) == []


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"quant_method": "gptq"}, ["quant_method is 'gptq'", "'compressed-tensors'"]),
        ({"format": "float-quantized"}, ["format is 'float-quantized'", "'pack-quantized'"]),
        ({"config_groups": None}, ["config_groups is None", "an object"]),
        ({"ignore": "lm_head"}, ["ignore is 'lm_head'", "a list"]),
    ],
)
def test_a_config_of_another_kind_is_refused_by_every_edit(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    source = packed_llama(tmp_path / "a", **changes)
    for operation in (derive, partial(add_ignore, entries=["x"]), partial(set_ignore, entries=["x"])):
        draft = drafted(source, operation)
        assert codes(draft) == ["format-unsupported"]
        assert [word for word in words if word not in str(draft.problems[0])] == []


def test_a_checkpoint_without_quantization_is_refused(tmp_path: Path) -> None:
    draft = drafted(write_checkpoint(tmp_path / "a", llama_entries(), LLAMA), derive)
    assert codes(draft) == ["not-quantized"]
    assert "ckpt quantize" in str(draft.problems[0])


def test_show_counts_the_modules_that_each_entry_covers(tmp_path: Path) -> None:
    draft = drafted(packed_llama(tmp_path / "a", "lm_head", r"re:.*layers\.0\.", "re:nonesuch", "re:("))
    # 7 packed projections and 2 norms in layer 0
    assert coverage(draft) == {"lm_head": 1, r"re:.*layers\.0\.": 9, "re:nonesuch": 0, "re:(": 0}


# derive


def test_derive_replaces_the_spelled_out_list_of_an_exporter(tmp_path: Path) -> None:
    """26 names in an export of four layers become as many patterns as there are kinds of modules."""
    found = pack(entries(), body_experts)
    names = [name.removesuffix(".weight") for name in entries() if name.endswith(("_proj.weight", "gate.weight"))]
    source = write_checkpoint(tmp_path / "a", found, config(*names, "lm_head"))
    draft = drafted(source, derive)
    assert codes(draft) == []
    assert ignored(draft) == [
        "re:^mtp.*",
        "re:.*mtp.*",
        r"re:.*linear_attn.*",
        r"re:.*shared_expert.*",
        r"re:.*visual.*",
        r"re:.*mlp\.gate$",
        r"re:.*self_attn.*",
        r"re:.*lm_head$",
    ]


def test_derive_names_the_head_that_transformers_builds_though_it_is_tied(tmp_path: Path) -> None:
    found = pack({name: entry for name, entry in llama_entries().items() if name != "lm_head.weight"}, is_layer_linear)
    changes = {"tie_word_embeddings": True, "quantization_config": quantization()}
    draft = drafted(write_checkpoint(tmp_path / "a", found, LLAMA | changes), derive)
    assert ignored(draft) == [r"re:.*lm_head$"]


@pytest.fixture(scope="module")
def packed_experts(replica: Path) -> Draft:
    return drafted(replica, partial(quantize, groups=[Group((BODY_EXPERTS,), Scheme(4, 32))]))


@pytest.fixture(scope="module")
def packed_body(replica: Path) -> Draft:
    return drafted(replica, partial(quantize, groups=[Group(BODY, Scheme(4, 128))]))


EXPERTS_LIST = [
    "re:^mtp.*",
    "re:.*mtp.*",
    r"re:.*linear_attn.*",
    r"re:.*shared_expert.*",
    r"re:.*visual.*",
    r"re:.*mlp\.gate$",
    r"re:.*self_attn.*",
    r"re:.*lm_head$",
]
BODY_LIST = [
    "re:^mtp.*",
    "re:.*mtp.*",
    r"re:.*shared_expert.*",
    r"re:.*visual.*",
    r"re:.*mlp\.gate$",
    r"re:.*in_proj_a$",
    r"re:.*in_proj_b$",
    r"re:.*lm_head$",
]


def test_the_lists_of_the_real_model(packed_experts: Draft, packed_body: Draft) -> None:
    assert ignored(derive(packed_experts)) == EXPERTS_LIST
    assert ignored(derive(packed_body)) == BODY_LIST
    assert ignored(derive(int8_head(packed_body))) == BODY_LIST[:-1]
    assert ignored(derive(graft_mtp(packed_body, packed_body.origin))) == BODY_LIST


@pytest.mark.parametrize("name", ["packed_experts", "packed_body"])
def test_the_lists_hold_under_the_names_that_vllm_gives_the_modules(name: str, request: pytest.FixtureRequest) -> None:
    draft: Draft = request.getfixturevalue(name)
    linears = {
        n.removesuffix(".weight") for n in draft.tensors if re.search(r"(proj|fc|gate|fc[12]|qkv|head)\.weight$", n)
    }
    packed = {n.removesuffix(".weight_packed") for n in draft.tensors if n.endswith(".weight_packed")}
    assert len(linears) > 300
    assert len(packed) > 30_000
    dense = {module for module in linears if "patch_embed" not in module}
    for rename in (str, vllm_name):
        assert [module for module in dense if not covered(ignored(draft), rename(module))] == []
        assert [module for module in packed if covered(ignored(draft), rename(module))] == []


def vllm_name(module: str) -> str:
    """As `Qwen3_5MoeForConditionalGeneration` maps them; the draft of a speculative run keeps `mtp.`."""
    for old, new in (("model.visual.", "visual."), ("lm_head", "language_model.lm_head")):
        module = new + module.removeprefix(old) if module.startswith(old) else module
    prefix = "model.language_model."
    return "language_model.model." + module.removeprefix(prefix) if module.startswith(prefix) else module


def covered(entries_: list[str], module: str) -> bool:
    """By compressed-tensors' rule, which all engines share: `re:` is matched at the start, else names are equal."""
    return any(re.match(e[3:], module) if e.startswith("re:") else e == module for e in entries_)


@pytest.mark.parametrize(
    "dense_layers, expected",
    [
        ((0, 39), [r"re:.*layers\.(0|39)\..*"]),
        ((7,), [r"re:.*layers\.7\..*"]),
    ],
)
def test_layers_that_stay_dense_are_named_by_number(dense_layers: tuple[int, ...], expected: list[str]) -> None:
    modules = [f"{LAYERS}{n}.mlp.experts.{e}.{p}_proj" for n in range(40) for e in range(16) for p in ("gate", "down")]
    dense = [m for m in modules if int(m.split(".")[3]) in dense_layers]
    assert derive_ignore(dense, set(modules) - set(dense)) == expected


def test_parts_of_layers_that_stay_dense_are_named_by_number_and_kind() -> None:
    modules = [f"{LAYERS}{n}.{leaf}" for n in range(40) for leaf in ("self_attn.q_proj", "mlp.up_proj")]
    dense = [m for m in modules if m.endswith("q_proj") and int(m.split(".")[3]) in (3, 7)]
    assert derive_ignore(dense, set(modules) - set(dense)) == [r"re:.*layers\.(3|7)\.self_attn\.q_proj$"]


def test_a_dense_module_is_told_from_a_packed_one_of_the_mtp_head() -> None:
    dense, packed = [f"{LAYERS}{n}.self_attn.q_proj" for n in range(4)], ["mtp.layers.0.self_attn.q_proj"]
    (entry,) = derive_ignore(dense, packed)
    assert entry == r"re:.*model\.layers\.\d+\.self_attn\.q_proj$"
    assert all(covered([entry], rename(module)) for module in dense for rename in (str, vllm_name))


def test_what_no_pattern_tells_apart_is_named_in_full() -> None:
    assert derive_ignore(["head"], ["lm.head"]) == ["head"]


COMPONENTS = ["model", "language_model", "layers", "mtp", "visual", "mlp", "experts", "gate", "gate_proj", "q_proj"]
NAMES = st.lists(st.sampled_from([*COMPONENTS, *"01239", "10"]), min_size=1, max_size=6).map(".".join)
MODULES = st.dictionaries(NAMES, st.booleans(), max_size=24)


@settings(max_examples=400, deadline=None)
@given(MODULES)
def test_a_derived_list_covers_all_that_is_dense_and_nothing_that_is_packed(is_dense: dict[str, bool]) -> None:
    dense = [module for module, state in is_dense.items() if state]
    packed = [module for module, state in is_dense.items() if not state]
    derived = derive_ignore(dense, packed)
    assert [module for module in dense if not covered(derived, module)] == []
    assert [module for module in packed if covered(derived, module)] == []
    assert len(derived) <= len(dense) + 1  # both spellings of MTP
    assert len(set(derived)) == len(derived)
    assert derive_ignore(reversed(dense), reversed(packed)) == derived


GRIDS = st.builds(
    lambda layers, cut, leaves: (layers, cut, leaves),
    st.integers(1, 12),
    st.sets(st.tuples(st.integers(0, 11), st.integers(0, 3)), max_size=30),
    st.sets(st.sampled_from(["q_proj", "k_proj", "up_proj", "gate"]), min_size=1),
)


@settings(max_examples=200, deadline=None)
@given(GRIDS)
def test_a_derived_list_begins_with_a_wildcard_so_that_a_prefix_does_no_harm(grid: Any) -> None:
    layers, cut, leaves = grid
    names = {(n, i): f"{LAYERS}{n}.mlp.{leaf}" for n in range(layers) for i, leaf in enumerate(sorted(leaves))}
    dense = [name for place, name in names.items() if place in cut]
    packed = [name for place, name in names.items() if place not in cut]
    derived = derive_ignore(dense, packed)
    assert all(entry.startswith("re:.*") for entry in derived)
    for rename in (str, vllm_name):
        assert [module for module in dense if not covered(derived, rename(module))] == []
        assert [module for module in packed if covered(derived, rename(module))] == []
    assert len(derived) <= 2 * len(leaves) + 1 or len(derived) <= len(dense)


def test_the_order_of_the_config_is_kept_and_unknown_keys_stay(tmp_path: Path) -> None:
    source = packed_llama(tmp_path / "a", "lm_head", version="0.18.0")
    draft = drafted(source, derive)
    assert draft.config.value["quantization_config"]["version"] == "0.18.0"
    assert list(draft.config.value) == [*LLAMA, "quantization_config"]
