"""The rules, each a function in the file of its subject, registered with what a reader wants to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from verify.finding import Finding, Severity

if TYPE_CHECKING:
    from verify.case import Case

Cost = Literal["headers", "config", "content"]
Level = Literal["headers", "sample", "full"]


@dataclass(frozen=True)
class Hit:
    """What a rule reports; the registry turns it into a Finding with the rule's id, severity and evidence."""

    place: str
    found: str
    consequence: str = ""
    remedy: str = ""
    severity: Severity | None = None
    engines: tuple[str, ...] | None = None
    count: int = 1


Check = Callable[["Case"], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """A registered rule.

    `evidence` names the source function or the public report it rests on, `versions` the releases in which what
    happens has changed. `remedy` stands for every hit that has none of its own.
    """

    id: str
    title: str
    severity: Severity
    cost: Cost
    engines: tuple[str, ...]
    evidence: str
    check: Check
    needs_base: bool = False
    remedy: str = ""
    versions: str = ""

    def run(self, case: Case) -> Iterator[Finding]:
        for hit in self.check(case):
            severity = hit.severity or self.severity
            engines = self.engines if hit.engines is None else hit.engines
            remedy = hit.remedy or self.remedy
            yield Finding(self.id, severity, hit.place, hit.found, hit.consequence, engines, remedy, hit.count)


RULES: dict[str, Rule] = {}


def rule(
    id: str,
    title: str,
    *,
    severity: Severity = "error",
    cost: Cost = "headers",
    engines: tuple[str, ...] = (),
    evidence: str = "",
    needs_base: bool = False,
    remedy: str = "",
    versions: str = "",
) -> Callable[[Check], Check]:
    """Register the decorated check under `id`. Raises ValueError where the id is taken."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"rule {id} is registered twice")
        RULES[id] = Rule(id, title, severity, cost, engines, evidence, check, needs_base, remedy, versions)
        return check

    return register
