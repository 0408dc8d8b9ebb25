"""`python -m evidence.builds WORK`: the small model and every export of it, each by a command of `ckpt`.

What each command was, and what `ckpt verify` says of its result, is written to WORK/builds.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from demo.damage import drop_draft_head
from evidence.reference import write_reference
from evidence.small import build_small

ENGINE = "vllm@0.24"
BASE = "base"


@dataclass(frozen=True)
class Export:
    """One checkpoint: made from `source` by `ckpt COMMAND`, or, without a command, by losing the MTP head."""

    name: str
    what: str
    source: str
    command: tuple[str, ...] = ()

    def words(self, work: Path) -> list[str]:
        """The arguments of `ckpt`."""
        first, *rest = (word.format(base=work / BASE) for word in self.command)
        return [first, str(work / self.source), *rest, "--out", str(work / self.name)]


INT8 = ("--target", r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$", "--bits", "8", "--group-size", "channel")

EXPORTS = (
    Export("experts", "experts-only INT4 g32", BASE, ("quantize", "--preset", "experts-int4-g32")),
    Export("body", "full-body INT4 g128", BASE, ("quantize", "--preset", "body-int4-g128")),
    Export("head", "BF16, INT8 head", BASE, ("quantize", "--group", r"re:.*lm_head$=8:128")),
    Export("experts-int8", "experts-only INT8 by channel", BASE, ("quantize", *INT8)),
    Export("experts-head", "experts-only INT4 g32, INT8 head", "experts", ("int8-head",)),
    Export("body-head", "full-body INT4 g128, INT8 head", "body", ("int8-head",)),
    Export("bare", "the same without its MTP head, as exporters leave it", "body-head"),
    Export("grafted", "the same after `ckpt graft-mtp`", "bare", ("graft-mtp", "--base", "{base}")),
)

REFERENCES = ("experts", "body", "head", "experts-int8", "experts-head", "body-head", "grafted")


def main(work: Path) -> None:
    """Make everything in `work`, a folder that is made too; what is there already is left alone."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / BASE).exists():
        build_small(work / BASE)
    rows = [{"name": BASE, "what": "BF16", "command": "python -m evidence.small base", "sha256": hashes(work / BASE)}]
    rows += [make(export, work) for export in EXPORTS]
    with ThreadPoolExecutor(4) as pool:
        there = [name for name in REFERENCES if (work / name).exists()]
        list(pool.map(lambda name: write_reference(work / name, work / f"{name}-reference"), there))
    (work / "builds.json").write_text(json.dumps(rows, indent=1))
    print(*(f"{row['name']}: {row.get('verify', '')}" for row in rows), sep="\n")


def make(export: Export, work: Path) -> dict[str, Any]:
    """Make one export and verify it; returns its row, which says so where the command fails."""
    target = work / export.name
    command = f"ckpt {' '.join(export.words(Path()))}" if export.command else "mtp.* left out of shards and index"
    row = {"name": export.name, "what": export.what, "command": command}
    if not target.exists() and export.command:
        done = ckpt(export.words(work))
        if done.returncode:
            return row | {"verify": {"code": done.returncode, "rules": [], "said": done.stderr[-600:]}}
    elif not target.exists() and (work / export.source).exists():
        shutil.copytree(work / export.source, target)
        drop_draft_head(target)
    return row | {"verify": verdict(target, work / BASE)}


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each shard."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


def verdict(folder: Path, base: Path | None) -> dict[str, Any]:
    """What `ckpt verify` says for the engine: exit code, and `rule severity` of each finding once."""
    against = ("--base", str(base)) if base else ()
    done = ckpt(["verify", str(folder), *against, "--engine", ENGINE, "--json"])
    if done.returncode > 1:
        return {"code": done.returncode, "rules": [], "said": (done.stderr or done.stdout)[-400:]}
    found = json.loads(done.stdout)["findings"]
    rules = dict.fromkeys((one["rule"], one["severity"]) for one in found)
    return {"code": done.returncode, "rules": [list(rule) for rule in rules], "said": ""}


def ckpt(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `ckpt` from this tree."""
    return subprocess.run([sys.executable, "-m", "ckpt", *words], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
