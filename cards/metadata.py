"""The keys of a card's front matter: what this checkpoint calls for, and what it inherits from its base's card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cards.frontmatter import Value
from cards.model import Model
from checkpoint.errors import brief
from checkpoint.quantization import quantization_config

LICENCE = ("license", "license_name", "license_link")
INHERITED = (*LICENCE, "pipeline_tag", "library_name")
ORDER = ("base_model", "base_model_relation", "quantized_by", *LICENCE, "library_name", "pipeline_tag", "tags")

MOST_SHOWN = 100
"""Of a list that stands where something else was expected."""

_ADDRESS = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class Origin:
    """What the user, the manifest and the base say of where a checkpoint comes from. `card` is the front matter of the
    base's README, None without a base; `base_model` and `quantized_by` are None where nobody said."""

    base_model: str | None = None
    quantized_by: str | None = None
    card: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Metadata:
    """`added` are the keys to add, in order; `differing` those of people's keys that say otherwise than would have been
    added: key -> (what stands there, what was expected); `lacking` is what could not be found out, and the way out."""

    added: Mapping[str, Value]
    differing: Mapping[str, tuple[Any, Value]]
    lacking: tuple[str, ...]


def metadata(model: Model, present: Mapping[str, Any], origin: Origin) -> Metadata:
    """What the front matter, which says `present`, should say besides. Keys that are there win, whatever they say."""
    lacking: list[str] = []
    wanted = dict(_wanted(model, present, origin, lacking))
    ordered = {key: wanted[key] for key in ORDER if key in wanted}
    differing = {
        key: (_shown(present[key]), value)
        for key, value in ordered.items()
        if key in present and not _says(present[key], value)
    }
    return Metadata({key: value for key, value in ordered.items() if key not in present}, differing, tuple(lacking))


def base_model_of(present: Mapping[str, Any], origin: Origin) -> str | None:
    """The base's name: what the front matter says, else what the user or the manifest does."""
    stated = present.get("base_model")
    first = stated[0] if isinstance(stated, list) and stated else stated
    return first if isinstance(first, str) and first else origin.base_model


def _wanted(model: Model, present: Mapping[str, Any], origin: Origin, lacking: list[str]) -> dict[str, Value]:
    wanted: dict[str, Value] = {}
    quantized = "packed" in model.facts or quantization_config(model.config) is not None
    if origin.base_model:
        wanted["base_model"] = [origin.base_model]
        if quantized:
            wanted["base_model_relation"] = "quantized"
    elif "base_model" not in present and quantized:
        lacking.append("base_model: give --base-model OWNER/NAME")
    if origin.quantized_by:
        wanted["quantized_by"] = origin.quantized_by
    wanted |= _inherited(model, present, origin, lacking)
    tags = tags_of(model)
    return wanted | ({"tags": tags} if tags else {})


def _inherited(model: Model, present: Mapping[str, Any], origin: Origin, lacking: list[str]) -> dict[str, Value]:
    card = origin.card or {}
    found: dict[str, Value] = {
        key: card[key] for key in INHERITED if isinstance(card.get(key), str) and card[key].strip()
    }
    if set(LICENCE) & set(present):  # a licence is one statement: parts of two would say what nobody said
        found = {key: value for key, value in found.items() if key not in LICENCE or present.get(key) is not None}
    elif "license" not in found:
        lacking.append("license: give --base BASE, whose README.md states one, or write it")
    _absolute_link(model, present, origin, found, lacking)
    if model.family and "library_name" not in found:
        found["library_name"] = "transformers"
    if model.family and "pipeline_tag" not in found:
        found["pipeline_tag"] = "image-text-to-text" if "stored:vision" in model.facts else "text-generation"
    return found


def _absolute_link(
    model: Model, present: Mapping[str, Any], origin: Origin, found: dict[str, Value], lacking: list[str]
) -> None:
    """A link that is a file of the base's repository is kept if the file is here, else becomes an address."""
    address = found.get("license_link")
    if not isinstance(address, str) or _ADDRESS.fullmatch(address) or address in model.checkpoint.side_files:
        return
    base = base_model_of(present, origin)
    if base:
        found["license_link"] = f"https://huggingface.co/{base}/blob/main/{address}"
    else:
        del found["license_link"]
        lacking.append(f"license_link: {address} of the base is not in this folder; give --base-model OWNER/NAME")


def tags_of(model: Model) -> list[str]:
    """How the weights are stored, and whether a draft head is there."""
    method = (model.quantization or {}).get("quant_method")
    packed = {entry.layout["bits"] for entry in model.entries if entry.packed}
    tags = [method] if isinstance(method, str) and method.isprintable() else []
    tags += [f"int{bits}" for bits in sorted(bits for bits in packed if bits)]
    return tags + (["mtp", "speculative-decoding"] if model.has_draft else [])


def _says(found: Any, wanted: Value) -> bool:
    """Does what stands there hold all that is wanted?"""
    held = {_word(one) for one in found} if isinstance(found, list) else {_word(found)}
    return held >= ({wanted} if isinstance(wanted, str) else set(wanted))


def _word(value: Any) -> str:
    """A value as text, no more of it than can be wanted: aliases make a billion of ten."""
    return brief(value) if isinstance(value, (dict, list, tuple, set)) else str(value)


def _shown(value: Any) -> Any:
    """What stands there, for a person to read."""
    return [_word(one) for one in value[:MOST_SHOWN]] if isinstance(value, list) else _word(value)
