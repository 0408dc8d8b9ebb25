"""Tensors missing, besides, misshapen or of another dtype, against the base or else against the config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from checkpoint import CONFIG
from checkpoint.dtypes import FLOATS
from checkpoint.families import SpecError
from verify.case import Case
from verify.claims import is_head, is_vision, place_of
from verify.engines import concerned
from verify.gathering import folded, gather
from verify.registry import Hit, rule

CONDITIONAL = "ForConditionalGeneration"
SILENT = "vLLM leaves a quantized model's missing tensor uninitialised, transformers draws random values"
GRAFT = "ckpt graft SRC --from BASE --tensors NAME"

LEFTOVERS = (
    (re.compile(r".*\.weight_g_idx"), "compressed-tensors 0.19 and vLLM dropped it: the columns are read unordered"),
    (re.compile(r".*\.inv_freq"), "engines compute it; strict loaders refuse it"),
    (re.compile(r".*\.[kqv]_scale"), "a scale of the KV cache; strict loaders refuse it without a scheme for it"),
    (
        re.compile(r".*(\.(input|output)_(scale|zero_point|global_scale)|observer).*"),
        "left behind by a calibration run; strict loaders refuse it",
    ),
)


@rule(
    "I01",
    "every tensor of the model is stored",
    evidence="vllm default_loader.py: no check for quantized models",
    remedy="ckpt graft SRC --from BASE --tensors NAME",
    versions="vLLM's enable_weights_track covers quantized modules since 0.32, off by default",
)
def missing_tensors(case: Case) -> Iterable[Hit]:
    inventory = case.inventory
    if inventory is None:
        case.notes.skip("which tensors are missing", "no base was given and the family of the model is unknown")
        return
    source = "the base has it" if inventory.source == "base" else "config.json calls for it"
    faults = ((name, f"missing; {source}") for name in inventory.missing.get("I01", ()))
    yield from gather(faults, consequence=SILENT, remedy=GRAFT)


@rule(
    "I02",
    "shapes are those of the model",
    evidence="vllm: column-parallel loaders narrow",
    remedy="ckpt graft SRC --from BASE --tensors NAME",
)
def shapes(case: Case) -> Iterable[Hit]:
    yield from _impossible(case)
    if case.inventory is None:
        return
    tensors, wanted = case.checkpoint.tensors, case.inventory.wanted
    faults = (
        (name, f"shape {list(ref.shape)}, expected {list(wanted[name].shape)}")
        for name, ref in tensors.items()
        if name in wanted and ref.shape != wanted[name].shape
    )
    consequence = "vLLM cuts surplus rows off without a word and raises on the rest"
    yield from gather(faults, consequence=consequence, remedy=GRAFT)


def _impossible(case: Case) -> Iterator[Hit]:
    """What the config says of sizes and no model can have. What it does not say, engines have a default for."""
    try:
        if case.family is not None and case.described is None:
            case.family.spec(case.config)
    except SpecError as error:
        for problem in error.problems:
            if "is missing" not in problem.found:
                remedy = "ckpt restore-files SRC --base BASE"
                yield Hit(CONFIG, problem.found, "engines raise, or build another model", remedy)


@rule(
    "I03",
    "dense tensors keep their dtype",
    severity="warning",
    evidence="engines cast silently on loading",
    remedy="ckpt graft SRC --from BASE --tensors NAME",
)
def dtypes(case: Case) -> Iterable[Hit]:
    if case.inventory is None:
        return
    tensors, wanted = case.checkpoint.tensors, case.inventory.wanted
    faults = (
        (name, f"stored as {ref.dtype}, expected {' or '.join(allowed)}")
        for name, ref in tensors.items()
        if name in wanted and ref.dtype not in (allowed := wanted[name].dtypes or tuple(sorted(FLOATS)))
    )
    yield from gather(faults, consequence="the value was rounded, or is not what it seems", remedy=GRAFT)


@rule(
    "I08",
    "layers are those the config counts and types",
    evidence="vllm builds modules from layer_types",
    remedy="ckpt restore-files SRC --base BASE",
)
def layers(case: Case) -> Iterable[Hit]:
    if case.inventory is None:
        return
    missing = _layers(case.inventory.missing.get("I08", ()))
    extra = _layers(case.inventory.extra.get("I08", ()))
    faults = [
        (f"{prefix}{index}", _layer_fault(components, extra.get(prefix, {}).get(index, set())))
        for prefix, indices in missing.items()
        for index, components in indices.items()
    ]
    faults += [
        (f"{prefix}{index}", "stored, and the config counts fewer layers")
        for prefix, indices in extra.items()
        for index in indices
        if index not in missing.get(prefix, {})
    ]
    consequence = "config and weights describe different models: AttributeError, or random weights"
    yield from gather(faults, consequence=consequence, remedy="ckpt restore-files SRC --base BASE")


def _layer_fault(missing: set[str], extra: set[str]) -> str:
    if not extra:
        return "the whole layer is missing"
    return f"{', '.join(sorted(extra))} stored where the config calls for {', '.join(sorted(missing))}"


@rule(
    "I09",
    "the vision tower is there if and only if the config has one",
    evidence="vllm#48060, llm-compressor#2752; the text-only class read, not run",
    remedy="ckpt restore-files SRC --base BASE",
    versions="vLLM has a text-only class since 0.27; before, it builds the vision-language class all the same",
)
def vision_tower(case: Case) -> Iterable[Hit]:
    inventory = case.inventory
    missing = inventory.missing.get("I09", ()) if inventory else ()
    extra = inventory.extra.get("I09", ()) if inventory else ()
    if missing:
        yield Hit(folded(missing), "missing", "images are read by random weights", GRAFT, count=len(missing))
    if extra:
        yield Hit(folded(extra), "stored, but the model has none", "strict loaders refuse the names", count=len(extra))
    yield from _text_only_class(case) if not missing else ()


def _text_only_class(case: Case) -> Iterator[Hit]:
    """vLLM before 0.27 and transformers build the vision-language class all the same (0.24 and 5.17, seen running)."""
    architectures = case.config.get("architectures")
    named = [str(name) for name in architectures] if isinstance(architectures, list) else []
    declared = any(CONDITIONAL in name for name in named)
    minds = tuple(e.label for e in concerned(case, "vllm", "sglang") if e.name != "vllm" or e.has("text_only_class"))
    if named and minds and not declared and any(is_vision(case, name) for name in case.named):
        found = f"architectures {named}, yet a vision tower is stored"
        remedy = "ckpt restore-files SRC --base BASE"
        consequence = "the text-only class does not know the vision weights"
        yield Hit("config.json", found, consequence, remedy, engines=minds)


@rule(
    "I10",
    "the output head is stored if and only if it is not tied",
    evidence="llm-compressor#2798",
    remedy="ckpt graft SRC --from BASE --tensors lm_head.weight",
)
def output_head(case: Case) -> Iterable[Hit]:
    if case.inventory is None:
        return
    missing = case.inventory.missing.get("I10", ())
    found = "missing, and tie_word_embeddings is false"
    yield from gather(((name, found) for name in missing), consequence="every logit is random", remedy=GRAFT)
    if not _is_tied(case):
        return
    consequence = "engines take the embedding for the head, so what was done to this one is lost"
    for module in filter(None, (case.modules.get(head) for head in _heads(case))):
        if module.packed:
            yield Hit(module.name, "packed, and tie_word_embeddings is true", consequence)
        elif set(module.tensors.values()) & set(case.inventory.extra.get("I10", ())):
            yield Hit(module.name, "stored, and tie_word_embeddings is true", consequence, severity="warning")


@rule(
    "I11",
    "nothing is stored that the model does not have",
    evidence="vllm 0.25 and later raise on unknown names",
    remedy="Write the checkpoint anew without it",
    versions="vLLM 0.25 and later raise; before, one warning and the tensor is skipped",
)
def unknown_tensors(case: Case) -> Iterable[Hit]:
    inventory = case.inventory
    names = case.checkpoint.tensors if inventory is None else inventory.extra.get("I11", ())
    told = {name: consequence for name in names if (consequence := _leftover(name))}
    for consequence in dict.fromkeys(told.values()):
        mine = ((name, "left over") for name, why in told.items() if why == consequence)
        yield from gather(mine, consequence=consequence, remedy="Write the checkpoint anew without it")
    if inventory is None:
        return
    source = "the base" if inventory.source == "base" else "the model that config.json describes"
    unknown = ((name, f"not a tensor of {source}") for name in names if name not in told)
    yield from gather(unknown, consequence="vLLM 0.25 and later raise: no module or parameter of that name")


def _leftover(name: str) -> str | None:
    """What is wrong with a name that calibration runs and old formats leave behind; None for any other."""
    return next((consequence for pattern, consequence in LEFTOVERS if pattern.fullmatch(name)), None)


def _layers(names: Iterable[str]) -> dict[str, dict[int, set[str]]]:
    """prefix -> layer number -> components."""
    layers: dict[str, dict[int, set[str]]] = {}
    for place in filter(None, map(place_of, names)):
        layers.setdefault(place.prefix, {}).setdefault(place.number, set()).add(place.component)
    return layers


def _heads(case: Case) -> list[str]:
    return [module for module in case.modules if is_head(case, module)]


def _is_tied(case: Case) -> bool:
    if case.spec is not None:
        return case.spec.tied
    text = case.config.get("text_config")
    stated = case.config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    return stated is True
