"""Costs as a JSON document, which `schemas/costs.schema.json` describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from costs.account import Costs, Row
from costs.decoding import Decode, Pass
from costs.line import Line, fit
from costs.parts import table_order


def document(several: Sequence[Costs], bandwidth: float, measured: Sequence[float] = ()) -> dict[str, Any]:
    """The costs of `several` checkpoints under the same assumptions, `bandwidth` in bytes a second.

    `measured` are seconds that a token took, one for each checkpoint; without them, nothing is said of measurement.
    """
    assumed = asdict(several[0].serving) | {"bandwidth": bandwidth}
    found: dict[str, Any] = {"assumptions": assumed, "checkpoints": [_checkpoint(one, bandwidth) for one in several]}
    if measured:
        found["measured"] = _measured(several, measured)
    return found


def chosen(one: Costs) -> Decode | None:
    """The step that was asked for: a speculative one where tokens are drafted."""
    return one.speculative if one.serving.speculative else one.plain


def parts_of(several: Sequence[Costs]) -> dict[str, str]:
    """The names of all parts that one of `several` has, by id, in the order of a table."""
    names = {row.part.id: row.part.name for one in several for row in one.rows}
    return {part: names[part] for part in table_order() if part in names}


def line(several: Sequence[Costs], measured: Sequence[float]) -> Line | None:
    """Through bytes moved for a token and the seconds it took."""
    steps = [chosen(one) for one in several]
    known = [(step.seconds(1), seconds) for step, seconds in zip(steps, measured, strict=True) if step]
    return fit([one[0] for one in known], [one[1] for one in known])


def _checkpoint(one: Costs, bandwidth: float) -> dict[str, Any]:
    kept = one.caches
    return {
        "place": one.place,
        "family": one.family,
        "dtype": one.dtype,
        "disk": one.disk,
        "memory": {"total": one.memory, "weights": one.weights, "mtp": one.draft, "rotary_tables": one.tables},
        "parts": {row.part.id: _row(row, one) for row in one.rows},
        "caches": {
            "kv_dtype": kept.kv_dtype,
            "kv_token": kept.kv_token,
            "mtp_kv_token": kept.draft_kv_token,
            "state_dtype": kept.state_dtype,
            "state": kept.state,
        }
        if kept
        else None,
        "decoding": _step(one.plain, bandwidth),
        "speculative_decoding": _step(one.speculative, bandwidth),
        "not_judged": dict(one.unjudged),
    }


def _row(row: Row, one: Costs) -> dict[str, int | None]:
    part = row.part.id
    read = {"read": one.plain.weights().get(part, 0) if one.plain else None}
    if one.serving.speculative:
        read["speculative_read"] = one.speculative.weights().get(part, 0) if one.speculative else None
    return {"modules": row.modules, "disk": row.disk, "memory": row.memory, **read}


def _step(step: Decode | None, bandwidth: float) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        "body": _pass(step.body),
        "drafts": _pass(step.drafts) if step.drafts else None,
        "step_bytes": step.step,
        "emitted": step.emitted,
        "token_bytes": step.token,
        "token_seconds_at_least": step.seconds(bandwidth),
    }


def _pass(one: Pass) -> dict[str, int]:
    caches = ("kv_read", "kv_written", "state_read", "state_written")
    return {"weights": sum(one.weights.values()), **{key: getattr(one, key) for key in caches}}


def _measured(several: Sequence[Costs], measured: Sequence[float]) -> dict[str, Any]:
    fitted = line(several, measured)
    steps = [chosen(one) for one in several]
    return {
        "token_seconds": list(measured),
        "bandwidth": [
            step.seconds(1) / seconds if step else None for step, seconds in zip(steps, measured, strict=True)
        ],
        "line": {
            "fixed_seconds": fitted.fixed,
            "bandwidth": fitted.bandwidth,
            "residual_seconds": list(fitted.residuals),
        }
        if fitted
        else None,
    }
