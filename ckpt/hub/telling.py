"""What an upload says, to people and to machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from checkpoint import Problem
from ckpt.hub.delivery import Delivery
from ckpt.output import Output, table
from ckpt.text import plural, size

if TYPE_CHECKING:
    from ckpt.hub.sending import Sent
    from verify import Finding, GateResult


def refused(result: GateResult, repo: str, output: Output) -> None:
    """That nothing was sent, and the way out. What stands against it was printed."""
    output.result({"repo": repo, "allowed": False, **judged(result)})
    rules = " ".join(dict.fromkeys(finding.rule for finding in result.blocking))
    output.hint(
        f"refused, nothing was sent: {rules}. Mend what stands above, or let it pass with --waivers FILE, "
        "which says rule, place and reason"
    )


def refused_beside(result: GateResult, planned: Delivery, output: Output) -> None:
    """That nothing was sent because of what stays on the Hub beside it."""
    output.result({"repo": planned.remote.repo, "allowed": False, **judged(result)})
    for finding in result.blocking:
        output.line(f"  {finding.rule} {finding.place}: {finding.found}")
    output.hint(
        f"refused, nothing was sent: this stands against the checkpoint beside what {planned.remote} keeps. "
        "Remove those files there, or let it pass with --waivers FILE"
    )


def show_delivery(planned: Delivery, unsent: Iterable[str], output: Output) -> None:
    """What is sent, what stays, what goes: one line for each file that changes on the Hub."""
    remote = planned.remote
    if not remote.exists:
        output.line(f"{remote} is not there yet")
    rows: list[tuple[str, ...]]
    rows = [(planned.changes[item.name], size(item.size), item.name) for item in planned.sent]
    rows += [("deleted", size(remote.files[name].size), name) for name in planned.deleted]
    for line in table(rows, right=frozenset({1})):
        output.line(f"  {line}")
    same = len(planned.items) - len(planned.sent)
    output.line(f"to {remote}: {plural(len(planned.sent), 'file')}, {size(planned.nbytes)}; {same} there already")
    if kept := [name for name in planned.kept if not name.startswith(".")]:
        output.line(f"kept on the Hub: {_few(kept)}")
    if left := list(unsent):
        output.line(f"not sent: {_few(left)}")


def show_differences(problems: Iterable[Problem], findings: Iterable[Finding], sent: Sent, before: str | None) -> None:
    """What is not as it was checked, and what to do about it; on stderr, whatever else is silent."""
    import sys

    print(f"ckpt: what arrived is not what was checked: {sent.url}", file=sys.stderr)
    for problem in problems:
        print(f"  - {problem}", file=sys.stderr)
    for finding in findings:
        found = Problem("finding-differs", f"{finding.rule} {finding.found}", finding.place, expected="the same here")
        print(f"  - {found}", file=sys.stderr)
    earlier = f", or go back to {before}" if before else ""
    print(f"Nobody should load commit {sent.commit}: run the upload again{earlier}", file=sys.stderr)


def judged(result: GateResult) -> dict[str, Any]:
    """The verdict for machines: the report, which has the reasons of what was waived, and waivers of no use."""
    unused = [{"rule": one.rule, "place": one.place, "reason": one.reason} for one in result.unused]
    return {"report": result.report.document(), "unused_waivers": unused}


def planned_document(planned: Delivery, unsent: Iterable[str]) -> dict[str, Any]:
    """The delivery for machines."""
    return {
        "exists": planned.remote.exists,
        "private": planned.remote.private,
        "parent": planned.remote.head,
        "files": [
            {"name": one.name, "bytes": one.size, "sha256": one.sha256, "change": planned.changes[one.name]}
            for one in planned.items
        ],
        "deleted": list(planned.deleted),
        "kept": list(planned.kept),
        "not_sent": list(unsent),
    }


def difference_document(problems: Iterable[Problem], findings: Iterable[Finding]) -> list[Mapping[str, str | None]]:
    """What did not arrive as it was checked, for machines."""
    said: list[Mapping[str, str | None]] = [
        {"code": one.code, "file": one.file, "tensor": one.tensor, "found": one.found, "expected": one.expected}
        for one in problems
    ]
    return said + [
        {"code": "finding-differs", "file": one.place, "tensor": None, "found": f"{one.rule} {one.found}"}
        for one in findings
    ]


def _few(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
