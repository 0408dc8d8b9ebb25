"""The order of an upload: prepare and decide, make the one commit, look at what arrived."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint import Checkpoint, CkptError, Problem, Refused, UnreadableCheckpoint, survey
from checkpoint.folder import MANIFEST, RECORDS, SIGNATURE, TOLERATED
from ckpt.hub.arrival import file_differences, finding_differences, header_differences
from ckpt.hub.becoming import becoming
from ckpt.hub.contents import KEPT_IN_GIT, Item, Published, hashed, item_of
from ckpt.hub.delivery import Delivery, delivery
from ckpt.hub.faults import LOGIN, HubFailed, hush
from ckpt.hub.papers import finished, report_item, shown_base
from ckpt.hub.repository import Remote, find, ready
from ckpt.hub.sending import Sent, send
from ckpt.hub.telling import (
    difference_document,
    judged,
    planned_document,
    refused_beside,
    show_delivery,
    show_differences,
)
from ckpt.output import Output
from ckpt.text import plural, size

if TYPE_CHECKING:
    from checkpoint.manifest import Manifest
    from verify import Finding, GateResult, Waiver
    from verify.case import Progress
    from verify.registry import Level

LONGEST_MESSAGE = 10_000
"""Characters of a commit's message."""


@dataclass(frozen=True)
class Asked:
    """Where to, and how."""

    folder: Path
    repo: str
    branch: str
    private: bool | None
    message: str
    with_report: bool
    dry_run: bool


@dataclass(frozen=True)
class Judging:
    """What a folder is judged by, and what arrived of it."""

    base: Checkpoint | None
    schema: str | None
    engines: tuple[str, ...]
    strict: bool
    waivers: tuple[Waiver, ...]
    output: Output

    def gate(self, checkpoint: Checkpoint, level: Level) -> GateResult:
        """The verdict, printed."""
        from ckpt.showing import watched

        hidden = self.output.as_json or self.output.quiet or level == "headers"
        with watched(hidden) as progress:
            result = self.verdict(checkpoint, level, progress)
        for line in (*result.report.lines(), *result.lines()):
            self.output.line(line)
        return result

    def verdict(self, checkpoint: Checkpoint, level: Level = "headers", progress: Progress | None = None) -> GateResult:
        """The verdict alone."""
        from verify import gate
        from verify.case import silent

        return gate(
            checkpoint,
            level=level,
            base=self.base,
            schema=self.schema,
            engines=self.engines,
            strict=self.strict,
            waivers=self.waivers,
            progress=progress or silent,
        )


def require_a_way_out(asked: Asked) -> None:
    """Raise HubFailed before anything is read where the Hub cannot be asked, or lets no one write."""
    from huggingface_hub import constants, get_token

    place = f"hf://{asked.repo}"
    if constants.HF_HUB_OFFLINE:
        raise HubFailed(Problem("hub-offline", "HF_HUB_OFFLINE is set", place, remedy="Unset it"))
    if not asked.dry_run and not get_token():
        raise HubFailed(Problem("hub-token", "there is no token", place, remedy=LOGIN))


def require_whole(checkpoint: Checkpoint) -> None:
    """Refuse what cannot be read, whatever was waived: it would be missing on the Hub."""
    fatal = [problem for problem in checkpoint.problems if problem.code not in TOLERATED]
    if fatal:
        raise Refused(fatal, "refused, nothing was published; this cannot be waived")


def carry_out(published: Published, result: GateResult, judging: Judging, asked: Asked) -> bool:
    """Send what was judged, or with a dry run say what would be sent. False where something else arrived.

    Raises Refused where files changed meanwhile, HubFailed with the branch as it was.
    """
    output = judging.output
    hush(bars=not output.as_json and not output.quiet and sys.stderr.isatty())
    remote = find(asked.repo, asked.branch)
    items = _prepared(published, result, judging, asked, remote)
    if not asked.dry_run:
        remote = _ready(remote, asked, output)
    planned = delivery(items, remote, RECORDS)
    show_delivery(planned, published.unsent, output)
    expected = judging.verdict(becoming(published, planned))
    if not expected.allowed:
        refused_beside(expected, planned, output)
        return False
    said = {"repo": asked.repo, "branch": asked.branch, "allowed": True, **judged(result)}
    said |= planned_document(planned, published.unsent)
    if asked.dry_run:
        output.result({**said, "dry_run": True})
        return True
    sent = _sent(planned, asked, result, output)
    problems, findings = _arrived(published.checkpoint, expected, judging, planned, sent)
    different = difference_document(problems, findings)
    output.result({**said, "commit": sent.commit, "url": sent.url, "differences": different})
    if different:
        show_differences(problems, findings, sent, remote.head)
        return False
    tensors = plural(len(published.checkpoint.tensors), "tensor")
    files = plural(len(items), "file")
    output.line(f"what arrived is what was checked: {files} by size and hash, {tensors} by header")
    return True


def _prepared(published: Published, result: GateResult, judging: Judging, asked: Asked, remote: Remote) -> list[Item]:
    """The files with their hashes, with manifest and report.

    A dry run hashes of large files only those that the Hub has in the same size: no other can be there already.
    """
    output, items = judging.output, list(published.items)
    if asked.dry_run:
        known = {name: entry.size for name, entry in remote.files.items()}
        items = [item for item in items if item.size <= KEPT_IN_GIT or known.get(item.name) == item.size]
    with output.progress("hashing", sum(item.size for item in items)) as advance:
        done = {item.name: item for item in hashed(items, advance)}
    items = [done.get(item.name, item) for item in published.items]
    return [*items, *_records(items, result, shown_base(judging.base), asked, output)]


def _records(items: list[Item], result: GateResult, base: str | None, asked: Asked, output: Output) -> Iterator[Item]:
    """What is sent about the checkpoint: its manifest, a signature that still holds, the report."""
    from checkpoint.manifest import read_manifest

    manifest, signature = read_manifest(asked.folder), asked.folder / SIGNATURE
    holds = signature.is_file()
    if manifest is None:
        output.line(f"{MANIFEST} is not there: where this checkpoint comes from is not told")
    else:
        complete = finished(manifest, items, result, base)
        content = complete.text.encode()
        yield item_of(MANIFEST, content)
        if (asked.folder / MANIFEST).read_bytes() != content:
            if not asked.dry_run:
                _complete(manifest, complete, asked.folder)
            if holds:
                output.line(f"{SIGNATURE} is not sent: the manifest was completed since. Sign again, then upload again")
            holds = False
    if holds:
        yield item_of(SIGNATURE, signature.read_bytes())
    if asked.with_report:
        yield report_item(result.report, asked.repo, base)


def _complete(before: Manifest, after: Manifest, folder: Path) -> None:
    """Put the completed manifest in place. Raises Refused where another run is writing the folder, or has."""
    from checkpoint.manifest import read_manifest
    from checkpoint.recovery import editing

    with editing(folder):
        if read_manifest(folder) != before:
            problem = Problem("file-changed", "changed since it was judged", MANIFEST, remedy="Run the command again")
            raise Refused(problem, "refused, nothing was published")
        after.write(folder)


def _sent(planned: Delivery, asked: Asked, result: GateResult, output: Output) -> Sent:
    """The commit, told."""
    sent = send(planned, asked.message, _description(result), lambda name, n: _tell(name, n, output))
    if sent.made:
        output.line(f"committed {sent.commit}: {sent.url}")
    else:
        output.line(f"nothing to send: {sent.url} is this checkpoint")
    return sent


def _tell(name: str, nbytes: int, output: Output) -> None:
    if nbytes > KEPT_IN_GIT:
        output.line(f"sent {name}, {size(nbytes)}")


def _description(result: GateResult) -> str:
    """The body of the commit's message: what was judged, and what was let pass and why."""
    report = result.report
    lines = [f"ckpt verify, level {report.level}: {report.summary()}", *result.lines()]
    return "\n".join(lines)[:LONGEST_MESSAGE]


def _arrived(
    ours: Checkpoint, expected: GateResult, judging: Judging, planned: Delivery, sent: Sent
) -> tuple[list[Problem], list[Finding]]:
    """What the Hub has that was not checked: files, tensors, findings. Raises CkptError where it cannot be asked."""
    try:
        problems = file_differences(planned, sent.commit)
        theirs = survey(f"hf://{planned.remote.repo}@{sent.commit}")
        problems += header_differences(ours, theirs)
        return problems, finding_differences(expected.report, judging.verdict(theirs).report)
    except (HubFailed, UnreadableCheckpoint) as error:
        raise CkptError(error.problems, f"{sent.url} was made, but not checked: run the same command again") from None


def _ready(remote: Remote, asked: Asked, output: Output) -> Remote:
    """The repository and its branch, made where they are not there yet, with a word on who sees it."""
    found = ready(remote, private=asked.private is not False)
    sight = "private" if found.private else "public"
    if not remote.exists:
        output.line(f"created {remote}, {sight}")
    elif asked.private not in (None, remote.private):
        output.hint(f"{remote} exists and is {sight}; it stays so. Change it on its page")
    return found
