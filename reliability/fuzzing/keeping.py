"""The corpora of the repository: few small inputs that reach what all that was tried reaches."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.fuzzing.campaign import MEMORY, ROOT, Campaign
from reliability.fuzzing.execute import PROGRAM
from reliability.fuzzing.target import Target

MOST = 60
"""Inputs of a target that are kept: the smallest ones."""

FOUND = "found-"
"""How the names of inputs begin that once did harm; they are kept whatever they reach."""


def keep(campaign: Campaign, target: Target) -> int:
    """Renew the corpus of `target`; how many inputs it has then. Raises ValueError, with all as it was, where libFuzzer
    leaves nothing."""
    with TemporaryDirectory(prefix="ckpt-fuzz-") as folder:
        merged = _merged(campaign, target, Path(folder))
        target.corpus.mkdir(parents=True, exist_ok=True)
        for path in target.kept():
            if not path.name.startswith(FOUND):
                path.unlink()
        for path in sorted(merged, key=lambda one: one.stat().st_size)[:MOST]:
            name = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            shutil.copyfile(path, target.corpus / name)
    return len(target.kept())


def _merged(campaign: Campaign, target: Target, folder: Path) -> list[Path]:
    """What libFuzzer leaves of the campaign's corpus, in `folder`. It calls itself, by the name that it has."""
    kept = folder / "kept"
    kept.mkdir()
    command = [campaign.python, "-m", "reliability.fuzzing.execute", target.name]
    itself = folder / "itself"
    itself.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    itself.chmod(0o700)
    options = ["-set_cover_merge=1", f"-rss_limit_mb={MEMORY}", f"-max_len={target.longest}"]
    sources = [str(campaign.work / "corpus" / target.name)]
    done = subprocess.run(
        [*command, *options, str(kept), *sources],
        cwd=ROOT,
        env={**os.environ, PROGRAM: str(itself)},
        capture_output=True,
        check=False,
    )
    merged = list(kept.iterdir())
    if done.returncode or not merged:
        raise ValueError(f"{target.name} was not merged: {done.stderr.decode(errors='replace')[-500:]}")
    return merged
