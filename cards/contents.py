"""The blocks of a card about what is stored: parts with their form and the reason for it, and what the config says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cards.markdown import cited, code, link, table, text, with_reports
from cards.markers import REPO
from cards.model import Model
from cards.parts import Row, why_dense
from cards.wording import listing, plural, share, size
from checkpoint.folding import fold, unfold
from checkpoint.patterns import matches, pattern_problems
from verify.engines import config_groups, ignore_entries

TIED = "The output head is the token embedding (tied). "
SCALES = "A packed module's size includes its scales. "


def part_lines(model: Model, base_model: str | None) -> list[str]:
    """The table of parts, headed by what a reader wants to know first."""
    quantized = "packed" in model.facts
    header = ["Part", "Stored as", "Modules", "Parameters", "Size", *(["Why it is dense"] if quantized else [])]
    body = [_row(row, model, quantized) for row in model.rows]
    sizes = model.sizes
    sums = ["All", "", f"{model.document['totals']['modules']:,}", _parameters(sizes.parameters, sizes.unknown)]
    body.append([*sums, _kept(size(sizes.nbytes)), *([""] if quantized else [])])
    return [
        f"## {'Quantization' if quantized else 'Weights'}",
        "",
        _summary(model, base_model),
        "",
        *table(header, body, right=frozenset({2, 3, 4})),
        "",
        f"{TIED if model.document['tied'] else ''}{SCALES if quantized else ''}GB are 10^9 bytes, GiB 2^30.",
    ]


def _summary(model: Model, base_model: str | None) -> str:
    base = f"Made from {_repository(base_model)}. " if base_model else ""
    packed = [row for row in model.rows if row.packed]
    if not packed:
        why = f" as {model.unsupported}, which is not described further here" if model.unsupported else ""
        stated = "Quantized" + why if model.quantization is not None else "Not quantized"
        return f"{base}{stated}. {plural(model.document['totals']['modules'], 'module')}."
    inside = sum(row.sizes.parameters for row in packed)
    forms = list(dict.fromkeys(row.form for row in packed))
    count = sum(row.modules for row in packed)
    return (
        f"{base}{count:,} of {plural(model.document['totals']['modules'], 'module')} are packed "
        f"({'; '.join(forms)}). They hold {share(inside, model.sizes.parameters)} of the parameters; all else is dense."
    )


def _repository(name: str) -> str:
    return link(code(name), f"https://huggingface.co/{name}") if re.fullmatch(REPO, name) else code(name)


def _row(row: Row, model: Model, quantized: bool) -> list[str]:
    sizes = row.sizes
    cells = [row.part.title, row.form, f"{row.modules:,}", _parameters(sizes.parameters, sizes.unknown)]
    return [*cells, _kept(size(sizes.nbytes)), *([_why(row, model)] if quantized else [])]


def _kept(words: str) -> str:
    """`words` on one line of a narrow column."""
    return words.replace(" ", "\u00a0")


def _why(row: Row, model: Model) -> str:
    if row.packed:
        return ""
    reason = why_dense(row, model.family)
    if reason is None:
        return _as_configured(row, model)
    return with_reports(cited(reason.text), reason.evidence)


def _as_configured(row: Row, model: Model) -> str:
    """What keeps it dense by the config alone."""
    name = next(iter(unfold(row.entries[0].pattern)))
    ignored = (entry for entry in ignore_entries(model.quantization or {}) if not pattern_problems([entry]))
    found = next((entry for entry in ignored if matches(entry, name)), None)
    return f"ignored by {code(found, in_table=True)}" if found else "no config group targets it"


def _parameters(known: int, unknown: int) -> str:
    return f"over {known:,}" if unknown else f"{known:,}"


def format_lines(model: Model) -> list[str]:
    """What config.json says of how the weights are stored."""
    quantization = model.quantization
    if quantization is None:
        return []
    lines = ["### Format", "", f"- {_named(quantization.get('quant_method'))}, {_named(quantization.get('format'))}"]
    for name, group in config_groups(quantization).items():
        lines.append(f"- {code(name)}: {_scheme(group.get('weights'))}; targets {_entries(group.get('targets'))}")
    scales = sorted({str(entry.layout["scale_dtype"]) for entry in model.entries if entry.packed})
    if scales:
        lines.append(f"- scales are {listing(scales)}")
    ignored = ignore_entries(quantization)
    lines.append(f"- `ignore`: {_entries([one.pattern for one in fold((entry, None) for entry in ignored)])}")
    return lines


def _scheme(weights: Any) -> str:
    if not isinstance(weights, Mapping):
        return "no weights"
    kind = {"int": "INT", "float": "FP"}.get(str(weights.get("type", "int")), "?")
    grouping = f"groups of {weights.get('group_size')}" if weights.get("strategy") == "group" else "one scale per row"
    symmetric = "symmetric" if weights.get("symmetric", True) else "with zero points"
    order = f", actorder {weights['actorder']}" if weights.get("actorder") else ""
    return text(f"{kind}{weights.get('num_bits', '?')}, {grouping}, {symmetric}{order}")


def _entries(entries: Any) -> str:
    listed = [code(str(entry)) for entry in entries] if isinstance(entries, (list, tuple)) else []
    return ", ".join(listed) or "nothing"


def _named(value: Any) -> str:
    return code(str(value)) if value else "no format stated"
