"""Running the driver in a working folder, and going on from what an earlier run left there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checkpoint import Checkpoint, open_checkpoint
from surgery.gptq.environment import run_driver
from surgery.gptq.job import CALIBRATION_SET, COMPARISON, EXPORT, RESULT, Job
from surgery.gptq.workplace import begin, is_finished


def calibrated(job: Job, work: Path, python: Path, *, echo: bool) -> tuple[Checkpoint, Mapping[str, Any]]:
    """The raw export and what was recorded while it was made; from `work` where an earlier run has made it.

    Raises Refused, HandOffFailed; what was written stays in `work`.
    """
    if not is_finished(job, work):
        begin(job, work)
        run_driver(python, ["gptq", str(work.absolute())], work, echo=echo)
    return open_checkpoint(work / EXPORT), json.loads((work / RESULT).read_text(encoding="utf-8"))


def compared_with_rtn(
    job: Job, export: Path, python: Path, *, echo: bool, work: Path | None = None
) -> Mapping[str, Any]:
    """Sums of squared errors of `export` and of round-to-nearest on the rows held back, by module.

    The calibration set is that of `work`, else made anew, which gives the same. Raises Refused, HandOffFailed.
    """
    with TemporaryDirectory(prefix="ckpt-gptq-") as name:
        folder = Path(name)
        begin(job, folder)
        if work is not None and (work / CALIBRATION_SET).exists():
            shutil.copy(work / CALIBRATION_SET, folder)
        run_driver(python, ["compare", str(folder), str(export.absolute())], folder, echo=echo)
        found: Mapping[str, Any] = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
        return found
