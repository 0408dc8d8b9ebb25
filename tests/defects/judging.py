"""Breaking a sound checkpoint and judging it."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from defects.build import Defect
from defects.sound import SOUND
from verify import Report, verify


@cache
def outcome(defect: Defect) -> Report:
    """What `verify` says of the checkpoint with the defect."""
    build = SOUND[defect.on]().copy()
    if defect.edit:
        defect.edit(build)
    with tempfile.TemporaryDirectory() as folder:
        path = build.write(Path(folder) / "model")
        if defect.damage:
            defect.damage(path)
        return verify(path, **options(defect))


def options(defect: Defect) -> dict[str, Any]:
    build = SOUND[defect.on]()
    return {**defect.options, **({"base": build.base()} if defect.based and build.base else {})}
