"""`python -m evidence.planting WORK [--plant] [NAME...]`: plant the defects, and ask `ckpt verify` about each.

Folders WORK/defect-NAME are made from the exports in WORK; verdicts go to WORK/verdicts.json.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from demo.shards import State, read_shards, save_shard, write_index
from evidence.builds import BASE, verdict
from evidence.edits import Edit
from evidence.planted import PLANTED, Planted


def main(work: Path, names: list[str]) -> None:
    """Plant all defects, or those named, and judge them; with `--plant` only plant."""
    chosen = [planted for planted in PLANTED if not set(names) - {"--plant"} or planted.name in names]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 4) // 2)) as pool:
        if "--plant" in names:
            failed = [text for text in pool.map(lambda planted: attempted(planted, work), chosen) if text]
            print(f"{len(chosen) - len(failed)} defects planted", *failed, sep="\n")
            return
        rows = list(pool.map(lambda planted: judged(planted, work), chosen))
    (work / "verdicts.json").write_text(json.dumps(rows, indent=1))
    for row in rows:
        if not row["as_expected"]:
            print(f"{row['name']}: expected {row['rule']}, got {row['verify']}")


def attempted(planted: Planted, work: Path) -> str:
    """Plant one; returns what went wrong, or nothing."""
    try:
        plant(planted, work)
    except (OSError, LookupError, ValueError, RuntimeError) as error:
        return f"{planted.name}: {type(error).__name__}: {error}"
    return ""


def judged(planted: Planted, work: Path) -> dict[str, Any]:
    """Plant one and judge it; returns its row."""
    row: dict[str, Any] = {"name": planted.name, "what": planted.what, "on": planted.on, "rule": planted.rule}
    folder = plant(planted, work)
    found = verdict(folder, work / BASE)
    row["verify"] = found
    row["verify_alone"] = verdict(folder, None)
    errors = [rule for rule, severity in found["rules"] if severity == "error"]
    return row | {"as_expected": planted.rule in errors}


def plant(planted: Planted, work: Path) -> Path:
    """The checkpoint with the defect. Shards that it leaves alone are hard links to the sound ones."""
    source, target = work / planted.on, work / f"defect-{planted.name}"
    if target.exists():
        return target
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            os.link(path, target / path.name)
    if planted.edit:
        _edit(target, planted.edit)
    if planted.damage:
        planted.damage(target)
    return target


def _edit(folder: Path, edit: Edit) -> None:
    state: State = {}
    home: dict[str, str] = {}
    for path, tensors in read_shards(folder):
        state |= tensors
        home |= dict.fromkeys(tensors, path.name)
    before = dict(state)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(state, config)
    path.unlink()
    path.write_text(json.dumps(config, indent=2) + "\n")
    _save(folder, before, state, home)


def _save(folder: Path, before: State, after: State, home: dict[str, str]) -> None:
    """Write the shards that changed; a tensor of a new name goes to the last one."""
    if before.keys() == after.keys() and all(before[name] is after[name] for name in before):
        return
    last = max(home.values())
    shard_of = {name: home.get(name, last) for name in after}
    for shard in sorted({*home.values()}):
        held = {name: after[name].contiguous() for name in after if shard_of[name] == shard}
        was = {name for name in before if home[name] == shard}
        if held.keys() != was or any(held[name] is not before[name] for name in held):
            save_shard(folder / shard, held)
    write_index(folder, shard_of, sum(tensor.nbytes for tensor in after.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
