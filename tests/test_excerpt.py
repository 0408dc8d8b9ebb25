"""What the rules find nothing wrong with in an excerpt, they find nothing wrong with in the whole."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Container
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import Entries, pack, write_checkpoint
from defects.build import Defect
from defects.corpus import CORPUS
from defects.judging import options
from defects.sound import SOUND
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from checkpoint import Checkpoint, Document, open_checkpoint, survey
from checkpoint.families import Family, find_family
from checkpoint.patterns import is_digit_blind
from verify import RULES, load_rules, verify
from verify.case import Case
from verify.descent import split_pieces
from verify.excerpt import KEPT, excerpt, is_for_excerpts
from verify.run import applicable

COUNT = 12
"""Experts of a layer: of both one and two digits."""

LAYER = "model.language_model.layers.0.mlp.experts"
ENGINES = Path(__file__).parents[1] / "verify" / "engines"
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def spoken(case: Case) -> list[str]:
    """The ids of the rules for excerpts that find something."""
    load_rules()
    rules = [rule for rule in applicable(case, None) if is_for_excerpts(rule)]
    return [rule.id for rule in rules if list(rule.run(case))]


def config(**changes: Any) -> dict[str, Any]:
    document = qwen.config(*qwen.SOUND)
    document["text_config"] |= {"num_experts": COUNT}
    document["quantization_config"] |= changes
    return document


@cache
def stored() -> Checkpoint:
    """The model with 12 packed experts in each layer, as a value that tests change."""
    return replace(written(pack(entries(), qwen.body_experts)), index=None)


@cache
def base() -> Checkpoint:
    """What it was made of, with fused experts."""
    return written(entries())


@cache
def base_by_expert() -> Checkpoint:
    """What it was made of, if all experts but the draft head's are stored one by one."""
    draft = {name: ref for name, ref in base().tensors.items() if name.startswith("mtp.")}
    main = [ref for name, ref in base().tensors.items() if name not in draft]
    pieces = {piece.name: piece for ref in main for piece in split_pieces(ref, family(), Anything())}
    return replace(base(), tensors=draft | pieces)


class Anything(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


def family() -> Family | None:
    return find_family(config())


def entries() -> Entries:
    found: Entries = {}
    for name, (dtype, shape, data) in qwen.entries().items():
        by_expert = name.endswith((".mlp.gate.weight", ".experts.gate_up_proj", ".experts.down_proj"))
        found[name] = (dtype, (COUNT, *shape[1:]) if by_expert else shape, data)
    return found


def written(tensors: Entries) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        return survey(write_checkpoint(Path(folder) / "model", tensors, config()))


def case_of(checkpoint: Checkpoint | None = None, document: dict[str, Any] | None = None, **more: Any) -> Case:
    found = stored() if checkpoint is None else checkpoint
    return Case(replace(found, config_document=Document.of(document or config())), **more)


# What an excerpt is


def test_one_expert_of_each_number_of_digits_stays_and_all_else_with_it() -> None:
    part = excerpt(case_of())
    assert part is not None
    experts = {name for name in stored().tensors if ".mlp.experts." in name and not name.startswith("mtp.")}
    kept = {name for name in experts if int(name.partition(".experts.")[2].partition(".")[0]) in KEPT}
    assert set(part.checkpoint.tensors) == set(stored().tensors) - experts | kept
    assert len(kept) == qwen.LAYERS * 3 * 3 * 3


def test_the_excerpt_of_a_sound_checkpoint_is_sound_and_says_the_same() -> None:
    case = case_of()
    part = excerpt(case)
    assert part is not None
    assert spoken(part) == spoken(case) == []
    assert part.notes.facts == case.notes.facts != []


def renamed(old: str, new: str) -> Checkpoint:
    tensors = {
        name.replace(old, new): ref._replace(name=name.replace(old, new)) for name, ref in stored().tensors.items()
    }
    return replace(stored(), tensors=tensors)


def changed(name: str, **fields: Any) -> Checkpoint:
    return replace(stored(), tensors={**stored().tensors, name: stored().tensors[name]._replace(**fields)})


def without(name: str) -> Checkpoint:
    return replace(stored(), tensors={one: ref for one, ref in stored().tensors.items() if one != name})


def beside(name: str) -> Checkpoint:
    like = stored().tensors[f"{LAYER}.7.up_proj.weight_scale"]
    return replace(stored(), tensors={**stored().tensors, name: like._replace(name=name)})


@pytest.mark.parametrize(
    "checkpoint",
    [
        without(f"{LAYER}.7.up_proj.weight_scale"),
        changed(f"{LAYER}.7.up_proj.weight_scale", shape=(1, 1)),
        changed(f"{LAYER}.7.up_proj.weight_scale", dtype="I32"),
        beside(f"{LAYER}.7.up_proj.weight"),
        beside(f"{LAYER}.1.up_proj.weight"),
        beside(f"{LAYER}.12.up_proj.weight_scale"),
        beside(f"{LAYER}.07.up_proj.weight_scale"),
        renamed(f"{LAYER}.7.", f"{LAYER}.70."),
    ],
    ids=[
        "absent",
        "misshapen",
        "of another dtype",
        "dense, too",
        "dense, too, and kept",
        "one more",
        "07",
        "renumbered",
    ],
)
@pytest.mark.parametrize("origin", [None, base], ids=["", "with a base"])
def test_experts_that_are_not_alike_are_all_looked_at(
    checkpoint: Checkpoint, origin: Callable[[], Checkpoint] | None
) -> None:
    case = case_of(checkpoint, base=origin() if origin else None)
    part = excerpt(case)
    assert spoken(case)
    if part is not None:
        assert f"{LAYER}.3.down_proj.weight_packed" in part.checkpoint.tensors
        assert spoken(part) == spoken(case)


@pytest.mark.parametrize(
    "entry",
    [
        f"{LAYER}.7.up_proj",
        "7.up_proj",
        "experts.7.up_proj",
        r"re:.*experts\.7\..*",
        r"re:.*experts\.[2-9]\..*",
        r"re:.*experts\.\x37\..*",
        r"re:.*experts\.\N{DIGIT SEVEN}\..*",
        r"re:.*layers\.(?P<n>\d)\.mlp\.experts\.(?P=n)\..*",
        r"re:.*layers\.(\d)\.mlp\.experts\.\1\..*",
    ],
)
def test_a_config_that_may_tell_experts_apart_is_read_for_all(entry: str) -> None:
    assert excerpt(case_of(document=config(ignore=[*qwen.SOUND, entry]))) is None


@pytest.mark.parametrize("entry", [r"re:.*experts\.\d\..*", r"re:.*experts\...\..*", "re:.*experts.[0-9][0-9].up.*"])
def test_a_regex_that_counts_digits_is_judged_by_the_experts_that_stay(entry: str) -> None:
    case = case_of(document=config(ignore=[*qwen.SOUND, entry]))
    part = excerpt(case)
    assert part is not None
    assert spoken(part) == spoken(case)


def test_experts_are_only_spared_where_the_family_tells_how_many_there_are() -> None:
    assert excerpt(case_of(document={**config(), "model_type": "unheard_of"})) is None


def test_rules_that_read_tensors_are_run_on_the_whole() -> None:
    load_rules()
    reading = {rule.id for rule in RULES.values() if rule.cost == "content"}
    assert {"T06", "M06", "M07", "N04"} <= reading
    assert not any(is_for_excerpts(RULES[one]) for one in reading)


@pytest.mark.parametrize("origin", [base, base_by_expert], ids=["fused", "one by one"])
def test_with_a_base_the_excerpt_wants_no_more_than_it_holds(origin: Callable[[], Checkpoint]) -> None:
    case = case_of(base=origin(), level="full")
    part = excerpt(case)
    assert part is not None
    assert spoken(part) == spoken(case) == []
    assert part.notes.facts == case.notes.facts != []
    assert part.wanted is not None
    assert len(part.wanted) < len(case.wanted or ())


def in_base(name: str, **fields: Any) -> Checkpoint:
    """The base one by one, with one tensor otherwise, or lost if nothing is said of it."""
    tensors = dict(base_by_expert().tensors)
    ref = tensors.pop(name)
    return replace(base_by_expert(), tensors={**tensors, name: ref._replace(**fields)} if fields else tensors)


@pytest.mark.parametrize(
    "origin",
    [
        lambda: in_base(f"{LAYER}.7.up_proj.weight"),
        lambda: in_base(f"{LAYER}.7.up_proj.weight", shape=(1, 1)),
        lambda: in_base(f"{LAYER}.7.up_proj.weight", dtype="F32"),
    ],
    ids=["absent", "misshapen", "of another dtype"],
)
def test_experts_that_are_not_alike_in_the_base_are_all_looked_at(origin: Callable[[], Checkpoint]) -> None:
    case = case_of(base=origin())
    part = excerpt(case)
    assert part is not None
    assert f"{LAYER}.3.down_proj.weight_packed" in part.checkpoint.tensors
    assert spoken(part) == spoken(case)


def test_experts_that_the_base_has_none_of_are_alike_in_that() -> None:
    rest = {name: ref for name, ref in base().tensors.items() if not name.startswith(LAYER)}
    case = case_of(base=replace(base(), tensors=rest))
    part = excerpt(case)
    assert part is not None
    assert spoken(part) == spoken(case) != []


def test_the_first_module_of_which_a_rule_speaks_is_the_same_in_any_order() -> None:
    backwards = replace(stored(), tensors=dict(reversed(list(stored().tensors.items()))))
    case = case_of(backwards)
    part = excerpt(case) or case
    spoken(case), spoken(part)
    assert part.notes.facts == case.notes.facts


@pytest.mark.parametrize("pattern", [r".*\.mlp\.gate$", r"\d+", r"[0-9]*", r"[^0-9]+", r"[a-z]+\w", r"(?i).*[!-~]"])
def test_patterns_without_a_digit_treat_all_alike(pattern: str) -> None:
    assert is_digit_blind(pattern)
    assert len({bool(re.match(pattern, f"{digit}")) for digit in range(10)}) == 1


@pytest.mark.parametrize("pattern", [r"[0-8]", "1", r"\x31", r"\061", r"\[0-9]", r"(\d)\1", r"(?P<n>.)(?P=n)", r"a{2}"])
def test_patterns_with_a_digit_may_tell_them_apart(pattern: str) -> None:
    assert not is_digit_blind(pattern)


def test_no_regex_of_an_engine_tells_experts_apart() -> None:
    engines = [json.loads(path.read_text()) for path in ENGINES.glob("*.json")]
    views = [view for engine in engines for scopes in engine["families"].values() for view in scopes.values()]
    patterns = [pattern for view in views for pattern in view.get("unquantized", ())]
    assert patterns
    assert all(map(is_digit_blind, patterns))


# The same is found


@pytest.mark.parametrize("defect", CORPUS, ids=lambda defect: defect.id)
def test_a_defect_that_shows_in_the_whole_shows_in_the_excerpt(tmp_path: Path, defect: Defect) -> None:
    build = SOUND[defect.on]().copy()
    if defect.edit:
        defect.edit(build)
    path = build.write(tmp_path / "model")
    if defect.damage:
        defect.damage(path)
    given = {name: value for name, value in options(defect).items() if name in ("engines", "tp")}
    for origin in (None, options(defect).get("base")):
        case = Case(survey(path), origin and open_checkpoint(origin), **given)
        part = excerpt(case)
        if part is not None:
            assert spoken(part) == spoken(case)
            assert part.notes.facts == case.notes.facts


PIECES = st.sampled_from(
    [".*", "mlp", r"\.", ".", "experts", r"\d+", r"\d", "[0-9]", "7", "1", "gate_proj", "up_proj", "_proj", "$", "^",
     "mtp", "model", "language_model", "layers", "lm_head", r"\w+", "[^.]+", "(?!.*experts)", "shared_expert", "|",
     "visual"]
)  # fmt: skip
REGEXES = st.lists(PIECES, min_size=1, max_size=7).map(lambda pieces: "re:" + "".join(pieces))
EXACT = st.sampled_from(["lm_head", "Linear", "up_proj", "7.up_proj", "RoutedExperts", f"{LAYER}.0.up_proj", LAYER])
ENTRIES = st.lists(REGEXES | EXACT, max_size=4)
TENSORS = st.sampled_from([name for name in stored().tensors if "layers.0." in name or "layers.3." in name])


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """The checkpoint, in half of all cases with a tensor lost, doubled under another name, or of another shape."""
    if draw(st.booleans()):
        return stored()
    tensors, name = dict(stored().tensors), draw(TENSORS)
    ref = tensors.pop(name)
    match draw(st.sampled_from(["lost", "besides", "misshapen", "renamed"])):
        case "besides":
            other = (
                f"{name.rpartition('.')[0]}.{draw(st.sampled_from(['weight', 'bias', 'weight_g_idx', 'input_scale']))}"
            )
            tensors |= {name: ref, other: ref._replace(name=other)}
        case "misshapen":
            tensors[name] = ref._replace(shape=(*ref.shape, 1), dtype=draw(st.sampled_from(["F32", "I64", ref.dtype])))
        case "renamed":
            other = name.replace("layers.0.", "layers.9.").replace("experts.1", "experts.8")
            tensors[other] = ref._replace(name=other)
    return replace(stored(), tensors=tensors)


@given(checkpoints(), ENTRIES, ENTRIES, st.booleans(), st.sampled_from([None, base, base_by_expert]))
@SETTINGS
def test_whatever_the_config_lists_the_same_rules_speak(
    checkpoint: Checkpoint,
    ignore: list[str],
    targets: list[str],
    sound: bool,
    origin: Callable[[], Checkpoint] | None,
) -> None:
    document = config(ignore=[*(qwen.SOUND if sound else ()), *ignore])
    document["quantization_config"]["config_groups"]["group_0"]["targets"] += targets
    case = case_of(checkpoint, document, base=origin() if origin else None)
    part = excerpt(case)
    event("no excerpt" if part is None else "silent" if not spoken(part) else "spoken")
    if part is not None:
        assert spoken(part) == spoken(case)


def test_verify_says_the_same_of_a_folder_as_of_every_expert(tmp_path: Path) -> None:
    entries = pack(qwen.entries(), qwen.body_experts)
    folder = write_checkpoint(tmp_path / "model", entries, qwen.config(*qwen.SOUND[:-1]))
    case = Case(survey(folder))
    assert excerpt(case) is not None
    findings = [finding for rule in applicable(case, None) for finding in rule.run(case)]
    assert findings
    assert sorted(map(str, verify(folder).findings)) == sorted(map(str, findings))


def test_what_is_learned_is_told_in_the_order_of_the_rules(tmp_path: Path) -> None:
    origin = write_checkpoint(tmp_path / "base", entries(), qwen.config())
    folder = write_checkpoint(tmp_path / "model", pack(entries(), qwen.body_experts), config())
    case = Case(survey(folder), open_checkpoint(origin), level="full")
    findings = [finding for rule in applicable(case, None) for finding in rule.run(case)]
    report = verify(folder, base=origin, level="full")
    assert len(report.facts) > 2
    assert list(report.facts) == case.notes.facts
    assert sorted(map(str, report.findings)) == sorted(map(str, findings))
