"""What is sent about a checkpoint beside it: its manifest, made complete and true, and the report of the gate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from checkpoint import Checkpoint, Problem, Refused
from checkpoint.places import Repo
from ckpt.hub.contents import Item, item_of

if TYPE_CHECKING:
    from checkpoint.manifest import Manifest
    from verify import GateResult, Report

REPORT = "ckpt.report.json"
"""The report of the gate in the repository."""


@dataclass(frozen=True)
class Consent:
    """A finding that was let pass."""

    rule: str
    place: str | None
    reason: str


def finished(manifest: Manifest, items: Iterable[Item], result: GateResult, base: str | None) -> Manifest:
    """The manifest with every hash, with what the gate found, and with what was let pass and why.

    Side files and documents that people edited since the folder was written are marked as edited. Refused is a manifest
    that says other hashes of shards: whatever else it says would be believed of these.
    """
    by_name = {item.name: item for item in items}
    shards = {name: _completed(entry, by_name.get(name)) for name, entry in manifest.shards.items()}
    problems = list(_contradictions(manifest, by_name))
    if problems:
        raise Refused(problems, "refused, nothing was published")
    others = {name: item for name, item in by_name.items() if name not in shards}
    files = {name: _entry(manifest.files.get(name), item) for name, item in sorted(others.items())}
    report, waived = result.report, result.waived
    document = {**manifest.document, "files": files, "shards": shards}
    return (
        replace(manifest, document=document)
        .with_waivers(Consent(one.rule, one.place, report.waived[one]) for one in waived)
        .with_verdict(
            level=report.level, counts=dict[str, int](report.counts.items()), engines=report.engines, base=base
        )
    )


def report_item(report: Report, repo: str, base: str | None) -> Item:
    """The report for the repository, without the folders of this machine."""
    document = replace(report, checkpoint=f"hf://{repo}", base=base).document()
    return item_of(REPORT, (json.dumps(document, indent=2) + "\n").encode())


def shown_base(base: Checkpoint | None) -> str | None:
    """The base as others know it: a repository at a commit, or a folder's own name."""
    if base is None:
        return None
    return str(base.root) if isinstance(base.root, Repo) else base.root.absolute().name


def _contradictions(manifest: Manifest, items: Mapping[str, Item]) -> Iterator[Problem]:
    remedy = "See what changed with ckpt manifest verify DIR; a manifest that is not this folder's is best removed"
    for name, entry in manifest.shards.items():
        item = items.get(name)
        if item is None:
            yield Problem("manifest-differs", "is not among the shards", name, expected="a shard", remedy=remedy)
        elif entry["bytes"] != item.size or (item.sha256 and entry["sha256"] not in (None, item.sha256)):
            found = f"{item.size:,} bytes, {item.sha256 or 'not hashed'}"
            expected = f"what the manifest says: {entry['bytes']:,} bytes, {entry['sha256'] or 'not hashed'}"
            yield Problem("manifest-differs", found, name, expected=expected, remedy=remedy)


def _completed(entry: Mapping[str, Any], item: Item | None) -> Mapping[str, Any]:
    known = item is None or entry["sha256"] is not None
    return entry if known or item is None else {**entry, "sha256": item.sha256}


def _entry(before: Mapping[str, Any] | None, item: Item) -> Mapping[str, Any]:
    if before is not None and before["bytes"] == item.size:
        if item.sha256 is None:  # not hashed: a dry run
            return before
        if before["sha256"] in (None, item.sha256):
            return {**before, "sha256": item.sha256}
    whence = before["from"] if before else None
    return {"bytes": item.size, "sha256": item.sha256, "from": whence, "edited": True}
