"""Where a tensor came from: from the written one back through all runs that the manifest knows of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from checkpoint.header import TensorRef
from checkpoint.manifest.value import Manifest
from checkpoint.modules import split_name
from checkpoint.places import SCHEME


@dataclass(frozen=True)
class Origin:
    """One step back: how a tensor came to be, by which operation, from which tensor of which file of which input."""

    how: str
    operation: str | None
    parameters: Mapping[str, Any]
    terms: str
    place: str
    revision: str | None
    role: str
    file: str
    tensor: str
    part: bool

    def __str__(self) -> str:
        made = {"kept": "the very bytes", "recomputed": "computed", "calibrated": "calibrated"}[self.how]
        by = f" by {self.operation}" if self.operation else ""
        terms = f" ({self.terms})" if self.terms else ""
        what = f"a part of {self.tensor}" if self.part else self.tensor
        return f"{made}{by}{terms} from {what} in {self.file} of {self.place_text}"

    @property
    def place_text(self) -> str:
        if not self.revision:
            return self.place
        return f"{self.place}@{self.revision}" if self.place.startswith(SCHEME) else f"{self.place} ({self.revision})"


def traced(manifest: Manifest, ref: TensorRef) -> list[Origin]:
    """The origins of a tensor of the folder, the nearest first; empty where the manifest knows nothing of it."""
    shard = manifest.shards.get(ref.path.name)
    if shard is None:
        return []
    name, own = ref.name, manifest.rows(ref.path.name).get(ref.name)
    rows = [*_back(manifest, shard["origin"]), *_back(manifest, own[1] if own else None)]
    chain: list[Origin] = []
    for row, before in zip_longest(rows, rows[1:]):
        if before and before["input"] == row["input"]:
            continue  # the tensor's own origin in that input says more than that of the whole file
        chain.append(_origin(manifest, row, name))
        name = chain[-1].tensor
    return chain


def _back(manifest: Manifest, number: int | None) -> Iterator[Mapping[str, Any]]:
    """The origin and those before it. Each points to an earlier one, so this comes to an end."""
    while number is not None:
        row = manifest.document["origins"][number]
        yield row
        number = row.get("was")


def _origin(manifest: Manifest, row: Mapping[str, Any], name: str) -> Origin:
    source = manifest.document["inputs"][row["input"]]
    operation = manifest.document["operations"][row["operation"]] if "operation" in row else None
    module = split_name(name)[0]
    same = f"{module}.weight" if row["how"] == "recomputed" else name
    return Origin(
        how=row["how"],
        operation=operation["operation"] if operation else None,
        parameters=operation["parameters"] if operation else {},
        terms=", ".join(filter(None, (row.get("scheme"), row.get("maths") and f"{row['maths']} maths"))),
        place=source["place"],
        revision=source["revision"],
        role=source["role"],
        file=row["file"],
        tensor=row.get("tensor", same),
        part=row.get("part", False),
    )
