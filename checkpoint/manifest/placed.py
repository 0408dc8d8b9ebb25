"""Index, config and side files in a manifest: as they lie in the folder, and where each came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from checkpoint.document import Document
from checkpoint.folder import CONFIG, INDEX
from checkpoint.manifest.inputs import Input, Inputs
from checkpoint.manifest.past import Entry
from checkpoint.places import Repo
from checkpoint.plan import Plan

UNREAD = 64 * 1024 * 1024
"""Bytes from which a side file is not read for its hash: weights in another format, mostly."""


def placed_files(plan: Plan, inputs: Inputs, first: int, staged: Path, *, in_place: bool) -> dict[str, Entry]:
    """All that is no shard of the new set; `first` is the number of the first of `inputs`."""
    files: dict[str, Entry] = {}
    if plan.index is not None:
        files[INDEX] = {**_told(plan.index), **_index_source(plan, plan.index, first)}
    if plan.config is not None:
        files[CONFIG] = {**_told(plan.config), **_config_source(plan.config, inputs, first)}
    for name in plan.draft.side_files:
        number = _owner(name, plan.draft.side_files, inputs)
        source = None if number is None else {"input": first + number, "file": name}
        files[name] = {**_read(staged / name), "from": source, "edited": False}
    strays = plan.draft.origin.strays if in_place else ()
    files |= {name: _stray(plan.draft.origin.root / name, name, first) for name in strays}
    return dict(sorted(files.items()))


def _index_source(plan: Plan, index: Document, first: int) -> Entry:
    before = plan.draft.origin.index
    source = {"input": first, "file": INDEX} if before else None
    return {"from": source, "edited": before is None or before.text != index.text}


def _config_source(config: Document, inputs: Inputs, first: int) -> Entry:
    """The input whose config.json it descends from."""
    for number, one in enumerate(inputs.all):
        before = one.checkpoint.config_document if one.checkpoint else None
        if before is not None and before.path is not None and before.path == config.path:
            return {"from": {"input": first + number, "file": CONFIG}, "edited": before.text != config.text}
    return {"from": None, "edited": True}


def _owner(name: str, files: Mapping[str, Path], inputs: Inputs) -> int | None:
    """The number of the input that the side file is of; None for one that lies elsewhere."""
    return next((number for number, one in enumerate(inputs.all) if _has(one, name, files)), None)


def _has(one: Input, name: str, files: Mapping[str, Path]) -> bool:
    if one.checkpoint is None or name not in one.checkpoint.side_files:
        return False
    if one.checkpoint.side_files is files:
        return True
    root = one.checkpoint.root
    if isinstance(root, Repo):  # to ask for its path would download it
        return files[name].as_posix().endswith(f"/snapshots/{root.commit}/{name}")
    return one.checkpoint.side_files[name] == files[name]


def _stray(path: object, name: str, first: int) -> Entry:
    """A file named as a shard in a folder that is written in place, and not in its index: it stays, unread."""
    nbytes = path.stat().st_size if isinstance(path, Path) else 0
    return {"bytes": nbytes, "sha256": None, "from": {"input": first, "file": name}, "edited": False}


def _told(document: Document) -> Entry:
    raw = document.text.encode()
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def _read(path: Path) -> Entry:
    nbytes = path.stat().st_size
    if nbytes >= UNREAD:
        return {"bytes": nbytes, "sha256": None}
    with path.open("rb") as file:
        return {"bytes": nbytes, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
