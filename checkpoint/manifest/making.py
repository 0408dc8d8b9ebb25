"""The manifest of a plan that is carried out: all but hashes is told while shards are written, the rest behind them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.digest import Digest
from checkpoint.errors import naming
from checkpoint.folder import MANIFEST, without_collection
from checkpoint.manifest.inputs import Inputs, inputs_of
from checkpoint.manifest.origins import Origins
from checkpoint.manifest.past import Entry, Past, past_of
from checkpoint.manifest.placed import placed_files
from checkpoint.manifest.provenance import Provenance
from checkpoint.manifest.text import Table
from checkpoint.manifest.value import VERSION, Manifest, tool
from checkpoint.plan import Plan, ShardPlan


@dataclass(frozen=True)
class Account:
    """What is told before a shard is written. `entries` are this run's inputs; `shards` lack the hashes, `numbers` are
    the origins of the tensors of those that are not linked."""

    plan: Plan
    inputs: Inputs
    past: Past
    entries: list[Entry]
    origins: Origins
    shards: Mapping[str, Entry]
    numbers: Mapping[str, Mapping[str, int]]
    provenance: Provenance


def account_of(plan: Plan, provenance: Provenance | None) -> Account:
    """Read what the inputs tell of themselves: their manifests, headers and documents; no data."""
    with without_collection():
        inputs = inputs_of(plan.draft)
        past, entries = past_of(inputs.all)
        origins = Origins(plan.draft, inputs, past)
        shards = {shard.name: _shard(shard, inputs, past, origins) for shard in plan.shards}
        numbers = {
            shard.name: {name: origins.of_tensor(name, source) for name, source in shard.tensors.items()}
            for shard in plan.shards
        }
    return Account(plan, inputs, past, entries, origins, shards, numbers, provenance or Provenance())


def place_manifest(account: Account, digests: Mapping[str, Digest], staged: Path, *, in_place: bool) -> None:
    """Write the manifest into the staged folder, in which all else lies already."""
    with without_collection():
        text = manifest_of(account, digests, staged, in_place=in_place).text
    (staged / MANIFEST).unlink(missing_ok=True)
    with naming(staged / MANIFEST), (staged / MANIFEST).open("x", encoding="ascii", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def manifest_of(account: Account, digests: Mapping[str, Digest], staged: Path, *, in_place: bool) -> Manifest:
    """The whole of it, `digests` those of the shards that were written."""
    past = account.past
    shards = {name: _hashed(name, account, digests.get(name) or Digest()) for name in account.shards}
    operations = _operations(account)
    return Manifest(
        {
            "manifest": VERSION,
            "runs": [*past.runs, _run(account, len(operations))],
            "inputs": [*past.inputs, *account.entries],
            "operations": [*past.operations, *operations],
            "origins": account.origins.rows,
            "files": placed_files(account.plan, account.inputs, len(past.inputs), staged, in_place=in_place),
            "shards": shards,
        }
    )


def _operations(account: Account) -> list[Entry]:
    first = len(account.past.inputs)
    return [
        {
            "operation": step.operation,
            "parameters": dict(step.parameters),
            "inputs": {role: first + account.inputs.number(one) for role, one in step.sources.items()},
        }
        for step in account.plan.draft.steps
    ]


def _run(account: Account, operations: int) -> Entry:
    past, provenance = account.past, account.provenance
    return {
        "tool": tool(),
        "command": list(provenance.command) if provenance.command else None,
        "recipe": dict(provenance.recipe) if provenance.recipe else None,
        "inputs": list(range(len(past.inputs), len(past.inputs) + len(account.entries))),
        "operations": list(range(len(past.operations), len(past.operations) + operations)),
    }


def _shard(shard: ShardPlan, inputs: Inputs, past: Past, origins: Origins) -> Entry:
    """A shard to be. One that moves whole has the hash of its source, if that is known, and what is told of it."""
    entry: Entry = {"bytes": shard.nbytes, "sha256": None, "header": None, "action": shard.action, "origin": None}
    if shard.tensors or shard.was is None:
        return entry | {"header": hashlib.sha256(shard.header).hexdigest()}
    source = inputs.all[0]
    known = source.entry["shards"][shard.was]
    entry |= {"sha256": known["sha256"], "header": known["header"], "origin": origins.of_shard(shard.was)}
    told, first = source.rows_of(shard.was), past.first_origin.get(0, 0)
    rows = Table(told) if first == 0 else Table((name, [row[0], row[1] + first]) for name, row in told.items())
    rows = rows or origins.of_calibrated(source.tensors[shard.was], shard.was)
    if rows:
        rows.text  # noqa: B018  # there is time for it now
        entry["tensors"] = rows
    return entry


def _hashed(name: str, account: Account, digest: Digest) -> Entry:
    """The shard with the hashes that were taken while it was written."""
    entry, numbers = account.shards[name], account.numbers[name]
    if not numbers:
        return _copied(entry, digest) if digest.sha256 else entry
    rows: dict[str, list[Any]] = {tensor: [digest.tensors.get(tensor), number] for tensor, number in numbers.items()}
    for tensor in account.origins.expected.keys() & rows.keys():
        row = rows[tensor]
        if row[0] and row[0] != account.origins.expected[tensor]:
            row[1] = account.origins.without_past(row[1])
    return {**entry, "sha256": digest.sha256 or None, "tensors": rows}


def _copied(entry: Entry, digest: Digest) -> Entry:
    """A shard that was copied whole: if its source is no longer what was told of it, nothing of that is told on."""
    if entry["sha256"] in (None, digest.sha256):
        return {**entry, "sha256": digest.sha256}
    return {key: entry[key] for key in entry if key != "tensors"} | {"sha256": digest.sha256}
