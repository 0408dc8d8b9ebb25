"""What must hold when a run is refused, and when it comes through. Each check gives "" or what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from reliability.disks.state import contents, state
from reliability.forking import Ended, ckpt

Check = Callable[[], str]
Case = tuple[str, Check, str]
"""(what is tried, how it is checked, what a reader should know)."""


def nothing() -> None:
    """No change to the child."""


def refusal(
    arguments: Sequence[str | Path],
    watched: Iterable[Path],
    says: str,
    before: Callable[[], object] = nothing,
    codes: Sequence[int] = (3,),
) -> str:
    """The run must end with 3 (where a check is what it does, 1 is right too), say in one piece what matches `says`,
    and leave the `watched` folders as they were."""
    kept = {folder: state(folder) for folder in watched}
    ended = ckpt(arguments, before)
    fault = _misbehaved(ended, codes)
    if not fault and not re.search(says, ended.said):
        fault = f"says {ended.said[-300:]!r}"
    return fault or _changed(kept)


def success(
    arguments: Sequence[str | Path],
    made: Path,
    expected: dict[str, object],
    watched: Iterable[Path] = (),
    before: Callable[[], object] = nothing,
    apart: Iterable[str] = (),
) -> str:
    """The run must end with 0, leave the `watched` folders as they were, and hold in `made` what is expected, of the
    files `apart` only that they are there."""
    kept = {folder: state(folder) for folder in watched}
    fault = _misbehaved(ckpt(arguments, before), (0,)) or _changed(kept)
    if fault:
        return fault
    found = contents(made)
    compared = (found.keys() | expected.keys()) - {*apart}
    wrong = sorted(name for name in compared if found.get(name) != expected.get(name))
    wrong += [name for name in apart if name not in found]
    return f"differs in {wrong[:5]}" if wrong else ""


def _misbehaved(ended: Ended, codes: Sequence[int]) -> str:
    if ended.code not in codes or "Traceback" in ended.said:
        return f"code {ended.code}, not {codes}: {ended.said[-400:]}"
    return ""


def _changed(kept: dict[Path, dict[str, tuple[object, ...]]]) -> str:
    for folder, before in kept.items():
        after = state(folder)
        wrong = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if wrong:
            return f"{folder.name} changed: {wrong[:5]}"
    return ""
