"""Does llm-compressor understand targets and ignore list as they were planned? Asked before hours of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from checkpoint import Problem
from checkpoint.folding import fold
from surgery.gptq.job import Job


def match_problems(model: Any, job: Job) -> Iterator[Problem]:
    """Modules of the loaded model that would be quantized and should not, and the other way round."""
    import torch
    from compressed_tensors.utils import match_named_modules

    targets = [target for group in job.groups.values() for target in group["targets"]]
    matched = match_named_modules(model, targets, list(job.ignore))
    found = {name for name, module in matched if isinstance(module, torch.nn.Linear)}
    planned = {name for packed in job.modules for name in packed.names}
    yield from _folded(planned - found, "llm-compressor does not find it in the model, or leaves it dense", "quantized")
    yield from _folded(found - planned, "llm-compressor would quantize it", "dense")


def _folded(names: Iterable[str], found: str, expected: str) -> Iterator[Problem]:
    for folded in fold((name, 0) for name in sorted(names)):
        yield Problem("modules-differ", found, None, folded.pattern, expected, "Target or ignore it by its own name")
