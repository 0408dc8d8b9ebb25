"""From a recipe's calibration section to the finished set: read, choose, render, join, count."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checkpoint import CkptError, Problem, Refused
from surgery.calibration.dataset import CalibrationSet
from surgery.calibration.filling import Filled, Filler
from surgery.calibration.limits import limit_problems
from surgery.calibration.reading import SourceText, read_source
from surgery.calibration.recipe import Calibration
from surgery.calibration.rendering import (
    Renderer,
    Tokenizer,
    load_tokenizer,
    template_text,
    tokenizer_files,
    unread_arguments,
)
from surgery.calibration.report import Report, found, split_report
from surgery.calibration.shortage import shortages
from surgery.calibration.supply import Supply

LIBRARIES = ("transformers", "tokenizers", "jinja2")


def build_calibration(wanted: Calibration, model: Path) -> CalibrationSet:
    """The set that `wanted` describes, in token ids of the tokenizer in the folder `model`.

    The same texts, tokenizer and seed give the same ids anywhere, whatever the order of lines in a file. What is held
    back is chosen first, so it stays the same for any number of calibration sequences. Raises Refused with all that is
    wrong with sources and tokenizer, or with what a source lacks; MissingExtra without transformers.
    """
    tokenizer = load_tokenizer(model)
    template = template_text(tokenizer, wanted.template or {})
    sources = _read(wanted, model, template)
    supplies = _supplies(wanted, sources, tokenizer)
    filler = Filler([supply.conversations() for supply in supplies], wanted.shares)
    held_back = filler.fill(wanted.held_back, wanted.min_tokens, wanted.max_tokens)
    sequences = filler.fill(wanted.sequences, wanted.min_tokens, wanted.max_tokens)
    _refuse(wanted, model, supplies, filler.exhausted, [*held_back, *sequences])
    report = Report(
        calibration=split_report(sequences, supplies, wanted.shares, tokenizer.get_added_vocab()),
        held_back=split_report(held_back, supplies, wanted.shares, tokenizer.get_added_vocab()),
        sources=tuple(found(supply, filler.exhausted) for supply in supplies),
        vocabulary=len(tokenizer),
        unread_arguments=tuple(unread_arguments(template or "", wanted.template or {})),
    )
    return CalibrationSet(_ids(sequences), _ids(held_back), report, _record(wanted, model, sources, template))


def _read(wanted: Calibration, model: Path, template: str | None) -> list[SourceText]:
    """Every source; a file that several name is read once. Refuses all that is wrong with any of them."""
    problems: list[Problem] = []
    read: dict[Path, SourceText] = {}
    for spec in wanted.sources:
        try:
            if spec.path not in read:
                read[spec.path] = read_source(spec)
        except CkptError as error:
            problems += error.problems
    chats = sorted({text.spec.name for text in read.values() if text.has_chat})
    if template is None and chats:
        expected, remedy = (
            f"one to render {', '.join(chats)}",
            "Give the folder of the chat model, with its chat_template",
        )
        problems.append(
            Problem("template-absent", "has no chat template", str(model), expected=expected, remedy=remedy)
        )
    if problems:
        raise Refused(dict.fromkeys(problems))
    return [replace(read[spec.path], spec=spec) for spec in wanted.sources]


def _supplies(wanted: Calibration, sources: Sequence[SourceText], tokenizer: Tokenizer) -> list[Supply]:
    renderer, used = Renderer(tokenizer, wanted.template or {}, wanted.date), set[bytes]()
    return [Supply(number, source, renderer, wanted.seed, used) for number, source in enumerate(sources)]


def _refuse(
    wanted: Calibration, model: Path, supplies: Sequence[Supply], exhausted: Collection[int], filled: Sequence[Filled]
) -> None:
    """Raise Refused for what cannot be rendered, else for what is short, else for what the model has no place for."""
    problems = [problem for supply in supplies for problem in supply.problems()]
    problems = problems or list(shortages(wanted, supplies, exhausted, filled))
    problems = problems or list(limit_problems(model, [sequence.ids for sequence in filled]))
    if problems:
        raise Refused(dict.fromkeys(problems))


def _record(wanted: Calibration, model: Path, sources: Sequence[SourceText], template: str | None) -> dict[str, Any]:
    """What the set was made from. No time and no path of this machine, so that the same set has the same record."""
    return {
        "recipe": dict(wanted.written),
        "seed": wanted.seed,
        "sources": [{"source": source.spec.name, "sha256": source.sha256} for source in sources],
        "tokenizer": tokenizer_files(model),
        "template": hashlib.sha256(template.encode()).hexdigest() if template is not None else None,
        "versions": {library: version(library) for library in LIBRARIES},
    }


def _ids(filled: Sequence[Filled]) -> tuple[tuple[int, ...], ...]:
    return tuple(sequence.ids for sequence in filled)
