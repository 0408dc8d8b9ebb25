"""A result as the JSON document that `schemas/latency.schema.json` describes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from latency.measuring import Cell, Result
from latency.spread import FIGURES, LEVEL, Difference, Spread, differences, drafts, values
from latency.turns import Round, Turn
from serving import Speculation

VERSION = 1
DIGITS = 6
"""Significant digits; the clock has microseconds."""


def document(result: Result) -> dict[str, Any]:
    settings = asdict(result.settings)
    return {
        "version": VERSION,
        "run": result.run,
        "settings": settings | {name: list(settings[name]) for name in ("streams", "prompt_tokens")},
        "level": LEVEL,
        "candidates": [
            {
                "name": candidate.name,
                "url": candidate.server.url,
                "model": candidate.server.model,
                "engine": candidate.server.engine.name,
                "engine_version": candidate.server.version,
            }
            for candidate in result.candidates
        ],
        "cells": [_cell(cell, result.settings.seed) for cell in result.cells],
    }


def _cell(cell: Cell, seed: int) -> dict[str, Any]:
    return {
        "prompt_tokens": cell.prompt_tokens,
        "streams": cell.streams,
        "results": [_of_candidate(name, rounds) for name, rounds in cell.rounds.items()],
        "differences": [_difference(found) for found in differences(cell, seed)],
        "failures": [asdict(failure) for failure in cell.failures],
    }


def _of_candidate(name: str, rounds: tuple[Round, ...]) -> dict[str, Any]:
    turns = [turn for done in rounds for turn in done.turns]
    counts = {
        "prompt_tokens": [turn.prompt_tokens for turn in turns if turn.prompt_tokens is not None],
        "output_tokens": [turn.output_tokens for turn in turns],
        "cached_tokens": [turn.cached for turn in turns if turn.cached is not None],
    }
    return {
        "candidate": name,
        "counted_by": "server" if all(turn.counted for turn in turns) else "pieces",
        **{figure: _spread(Spread.of(values(rounds, figure))) for figure in FIGURES},
        **{name: _spread(Spread.of(found)) for name, found in counts.items()},
        "speculation": _speculation(drafts(rounds)),
        "rounds": [_round(done) for done in rounds],
    }


def _round(done: Round) -> dict[str, Any]:
    return {
        "number": done.number,
        "place": done.place,
        "tokens_per_second": _short(done.tokens_per_second),
        "turns": [_turn(turn) for turn in done.turns],
        "speculation": _speculation(done.speculation),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "first_ms": _short(turn.first),
        "whole_ms": _short(turn.whole),
        "token_ms": _short(turn.token),
        "prompt_tokens": turn.prompt_tokens,
        "output_tokens": turn.output_tokens,
        "cached_tokens": turn.cached,
    }


def _difference(found: Difference) -> dict[str, Any]:
    numbers = {name: _short(getattr(found, name)) for name in ("ratio", "low", "high")}
    return asdict(found) | numbers | {"verdict": found.verdict}


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {
        "median": _short(spread.median),
        "low": _short(spread.low),
        "high": _short(spread.high),
        "count": spread.count,
    }


def _speculation(found: Speculation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "acceptance": _short(found.acceptance),
        "length": _short(found.length),
        "by_position": [_short(value) for value in found.by_position],
        "drafts": found.drafts,
        "drafted": found.drafted,
        "accepted": found.accepted,
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
