"""A manifest in words: its runs, what went into them, and where a tensor came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from checkpoint import Checkpoint, Problem, UnreadableCheckpoint
from checkpoint.manifest import Manifest, traced
from ckpt.output import Output, table
from ckpt.text import plural, size

LONGEST = 300
"""Characters of an operation's parameters that are shown."""


def show_summary(manifest: Manifest, output: Output) -> None:
    """Inputs and operations of each run, then the files."""
    output.result(dict(manifest.document))
    for number, run in enumerate(manifest.document["runs"], 1):
        for line in _run_lines(manifest, number, run):
            output.line(line)
    output.line()
    for line in table(list(_rows(manifest)), right=frozenset({2, 3})):
        output.line(line)
    output.line()
    for waiver in manifest.document.get("waivers", ()):
        where = f" at {waiver['place']}" if waiver["place"] else ""
        output.line(f"let pass: {waiver['rule']}{where}: {waiver['reason']}")
    verdict = manifest.document.get("verdict")
    if verdict:
        counts = ", ".join(f"{count} {severity}" for severity, count in verdict["counts"].items())
        output.line(f"verified at level {verdict['level']}: {counts}")
    output.hint("`ckpt manifest show DIR TENSOR` tells where a tensor came from")


def show_tensors(manifest: Manifest, checkpoint: Checkpoint, names: Sequence[str], output: Output) -> None:
    """The chain of origins of each. Raises UnreadableCheckpoint for a tensor that the checkpoint does not hold."""
    tensors, root = checkpoint.tensors, str(checkpoint.root)
    absent = [name for name in names if name not in tensors]
    if absent:
        raise UnreadableCheckpoint(Problem("tensor-absent", "no such tensor", root, name) for name in absent)
    said = {}
    for name in names:
        ref, chain = tensors[name], traced(manifest, tensors[name])
        sha256 = (manifest.rows(ref.path.name).get(name) or [None])[0] if ref.path.name in manifest.shards else None
        said[name] = {"file": ref.path.name, "sha256": sha256, "origins": [asdict(origin) for origin in chain]}
        output.line(f"{name}: {ref.dtype} {list(ref.shape)} in {ref.path.name}, sha256 {sha256 or 'not computed'}")
        for origin in chain:
            output.line(f"  <- {origin}")
        if not chain:
            output.line("  <- not known")
    output.result({"tensors": said})


def _run_lines(manifest: Manifest, number: int, run: Mapping[str, Any]) -> Iterator[str]:
    tool = run["tool"]
    yield f"run {number}: {' '.join(run['command']) if run['command'] else 'called as a library'} " + (
        f"({tool['name']} {tool['version'] or 'from its sources'})"
    )
    if run["recipe"]:
        yield f"  recipe {run['recipe']['name']}"
    for index in run["inputs"]:
        source = manifest.document["inputs"][index]
        total = sum(shard["bytes"] for shard in source["shards"].values())
        revision = f" at {source['revision']}" if source["revision"] else ""
        made = f", written by run {source['run'] + 1}" if source["run"] is not None else ""
        shards = plural(len(source["shards"]), "shard")
        yield f"  {source['role']} {source['place']}{revision}: {shards}, {size(total)}{made}"
    for index in run["operations"]:
        operation = manifest.document["operations"][index]
        said = json.dumps(operation["parameters"])
        yield f"  {operation['operation']} {said if len(said) <= LONGEST else said[:LONGEST] + '...'}"


def _rows(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    yield ("action", "file", "bytes", "tensors", "sha256")
    for name, shard in manifest.shards.items():
        rows = shard.get("tensors", {})
        yield (shard["action"], name, size(shard["bytes"]), f"{len(rows):,}" if rows else "-", _short(shard))
    for name, file in manifest.files.items():
        how = "edited" if file["edited"] and file["from"] else "made" if file["edited"] else "kept"
        yield (how, name, size(file["bytes"]), "-", _short(file))


def _short(entry: Mapping[str, Any]) -> str:
    return f"{entry['sha256'][:16]}..." if entry["sha256"] else "not computed"
