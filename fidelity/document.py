"""A result as JSON, of the schema `fidelity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fidelity.measures import common_prefix
from fidelity.replies import Reply, Source
from fidelity.result import BASE, Column, Compared, Result
from fidelity.table import MEASURES, Case, diverges_at

VERSION = 1


def document(result: Result, gate: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All of it, prompt by prompt too. `gate`: what was asked of it and whether it holds."""
    base, *candidates = result.columns
    sources = {candidate.name: (candidate.source, candidate.unscored) for candidate in result.candidates}
    return {
        "version": VERSION,
        "prompts": {"name": result.asked.name, "count": len(result.asked.prompts), "sha256": result.asked.sha256},
        "sampling": {"temperature": 0, "max_tokens": result.references.max_tokens},
        "trust": {"level": result.trust.level, "resamples": result.trust.resamples, "seed": result.trust.seed},
        "base": _model(base, result.references.source, result.references.unscored),
        "candidates": [
            {
                "name": column.name,
                "prompts_laid_out_otherwise": result.relaid[column.name],
                "replies_split_otherwise": result.resplit[column.name],
            }
            | _model(column, *sources[column.name])
            for column in candidates
        ],
        "differences": [_compared(found) for found in result.differences],
        "gate": None if gate is None else dict(gate),
        "replies": [_prompt(row, base, candidates) for row in range(len(base.cases))],
    }


def _model(column: Column, source: Source, unscored: str | None) -> dict[str, Any]:
    measured = {measure.name: column.summary(measure) for measure in MEASURES}
    return {
        "model": source.model,
        "engine": source.engine,
        "dtype": source.dtype,
        "layout": {
            "by": source.layout.by, "sha256": source.layout.sha256, "arguments": dict(source.layout.arguments)
        },
        "unscored": unscored,
        "measures": {name: {"mean": value, "n": n} for name, (value, n) in measured.items()},
        "nll_median": column.median_nll,
        "divergence_median": column.median_divergence,
        "forms": {probe: {"passed": passed, "asked": asked} for probe, (passed, asked) in column.forms.items()},
    }  # fmt: skip


def _compared(found: Compared) -> dict[str, Any]:
    difference = found.found
    return {
        "measure": found.measure.name,
        "of": found.of,
        "against": found.against,
        "difference": difference.value,
        "low": difference.low,
        "high": difference.high,
        "n": difference.n,
        "verdict": difference.verdict,
        "needed": difference.needed,
    }


def _prompt(row: int, base: Column, candidates: list[Column]) -> dict[str, Any]:
    prompt = base.cases[row].prompt
    return {
        "id": prompt.id,
        "format": None if prompt.format is None else dict(prompt.format),
        "long": prompt.long,
        BASE: _reply(base.cases[row], base.name),
        "candidates": {column.name: _reply(column.cases[row], column.name) for column in candidates},
    }


def _reply(case: Case, name: str) -> dict[str, Any]:
    measured = {measure.name: measure.value(case) for measure in MEASURES if measure.of_base or name != BASE}
    record: dict[str, Any] = {"text": case.own.text, "finish": case.own.finish, "tokens": _count(case.own)} | measured
    if name != BASE:
        place = common_prefix(case.own.text, case.reference.text)
        record["diverges_at"] = {"token": diverges_at(case), "character": place}
    return record | {"token_nll": None if case.nll is None else list(case.nll)}


def _count(reply: Reply) -> int | None:
    return None if reply.ids is None else len(reply.ids)
