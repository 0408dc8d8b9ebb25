"""Writing drafts and reading folders back, with the safetensors library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from checkpoint import Draft, apply_plan, open_checkpoint, plan_for
from checkpoint.folder import MANIFEST

State = dict[str, torch.Tensor]
Operation = Callable[[Draft], Draft]


def written(source: Path, out: Path, *operations: Operation) -> Path:
    """`out`, a new folder: `source` after `operations`, all in one draft."""
    draft = Draft.of(open_checkpoint(source))
    for operation in operations:
        draft = operation(draft)
    return apply_plan(plan_for(draft, out), out).root


def drafted(source: Path, *operations: Operation) -> Draft:
    """The draft of `source` after `operations`; nothing is written."""
    draft = Draft.of(open_checkpoint(source))
    for operation in operations:
        draft = operation(draft)
    return draft


def codes(draft: Draft) -> list[str]:
    """The codes of a draft's problems, each once."""
    return list(dict.fromkeys(problem.code for problem in draft.problems))


def tensors(folder: Path) -> State:
    """Every tensor of a folder's shards."""
    state: State = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
    return state


def assert_same_bits(found: State, expected: State) -> None:
    """Equal names, dtypes, shapes and bits, NaN and the sign of zero included."""
    assert sorted(found) == sorted(expected)
    differing = [name for name in expected if not same_bits(found[name], expected[name])]
    assert differing == []


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def change(folder: Path, edit: Callable[[State], object], holding: str) -> None:
    """Apply `edit` to the state of the shard that holds the tensor `holding`, and write it as a new file."""
    for path in sorted(folder.glob("*.safetensors")):
        state = load_file(path)
        if holding in state:
            edit(state)
            path.unlink()
            save_file({name: t.contiguous() for name, t in state.items()}, path, metadata={"format": "pt"})
            return
    raise KeyError(holding)


def config_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` but its manifest, by relative name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
