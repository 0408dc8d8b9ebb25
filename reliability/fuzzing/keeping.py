"""The corpora of the repository: few small inputs that reach what all that was tried reaches."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.fuzzing.campaign import MEMORY, ROOT, Campaign
from reliability.fuzzing.target import Target

MOST = 60
"""Inputs of a target that are kept: the smallest ones."""

FOUND = "found-"
"""How the names of inputs begin that once did harm; they are kept whatever they reach."""


def keep(campaign: Campaign, target: Target) -> int:
    """Renew the corpus of `target`; how many inputs it has then."""
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
    """What libFuzzer leaves of the campaign's corpus, in `folder`."""
    command = [campaign.python, "-m", "reliability.fuzzing.execute", target.name, "-set_cover_merge=1"]
    command += [f"-rss_limit_mb={MEMORY}", f"-max_len={target.longest}"]
    sources = [str(campaign.work / "corpus" / target.name)]
    subprocess.run([*command, str(folder), *sources], cwd=ROOT, capture_output=True, check=False)
    return list(folder.iterdir())
