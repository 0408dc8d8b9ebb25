"""One violated rule, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """`place` is where (file, tensor, module or config path, folded if many), `found` what is there, `consequence` what
    it does in which engine, `remedy` the command that mends it."""

    rule: str
    severity: Severity
    place: str
    found: str
    consequence: str = ""
    engines: tuple[str, ...] = ()
    remedy: str = ""
    count: int = 1
