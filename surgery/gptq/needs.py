"""What a run needs of the machine: memory and disk, estimated from headers and the recipe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpoint import Checkpoint, Draft, Problem
from checkpoint.families import find_family
from surgery.calibration import Calibration
from surgery.gptq.environment import Environment
from surgery.gptq.modules import Planned
from surgery.gptq.targets import Targets
from surgery.mtp import mtp_of

_MEMINFO = Path("/proc/meminfo")
_HESSIAN_COPIES = 4
"""Of the largest Hessian while its module is quantized: normalised, stacked, and permuted along both axes."""


@dataclass(frozen=True)
class Needs:
    """Bytes. `model` are its weights, `rows` the calibration rows between two layers, `hessians` those of one step with
    the copies that quantizing takes; `export` is what the raw export takes on disk, and the result once more."""

    model: int
    rows: int
    hessians: int
    export: int

    @property
    def memory(self) -> int:
        return self.model + self.rows + self.hessians


def needs_of(
    base: Checkpoint, layout: Draft, modules: tuple[Planned, ...], targets: Targets, calibration: Calibration
) -> Needs:
    prefix = mtp_of(base.config).prefix  # transformers does not load it
    model = sum(ref.nbytes for name, ref in base.tensors.items() if not name.startswith(prefix))
    largest = max((module.hessian_bytes for module in modules), default=0)
    hessians = (targets.hessian_bytes or 0) + _HESSIAN_COPIES * largest
    return Needs(model, _row_bytes(base, calibration), hessians, sum(one.nbytes for one in layout.tensors.values()))


def _row_bytes(base: Checkpoint, calibration: Calibration) -> int:
    """BF16 hidden states [T, H] and the causal mask [T, T] of each sequence, which llm-compressor keeps."""
    family = find_family(base.config)
    text = family.text(base.config) if family else base.config
    hidden = text.get("hidden_size")
    length = calibration.max_tokens or calibration.min_tokens
    return calibration.sequences * length * ((hidden if isinstance(hidden, int) else 0) + length) * 2


def memory_problems(needs: Needs, targets: Targets, budget: int, found: Environment | None) -> Iterator[Problem]:
    """Hessians beyond what the recipe allows, or more than there is. With an accelerator, weights may go to disk."""
    held = targets.hessian_bytes
    if held is not None and held > budget:
        expected, remedy = f"at most gptq.memory, {budget:,}", "Raise it, or name smaller sequential_targets"
        yield Problem("hessian-memory", f"Hessians of one step take {held:,} bytes", None, None, expected, remedy)
    if found is not None and found.accelerator:
        if needs.hessians > found.accelerator_bytes:
            expected = f"at most {found.accelerator_bytes:,}, the memory of {found.accelerator}"
            yield Problem(
                "memory", f"Hessians take {needs.hessians:,} bytes", None, None, expected, "Lower gptq.memory"
            )
        return
    available = available_memory()
    if available is not None and needs.memory > available:
        found_text = f"needs about {needs.memory:,} bytes of memory: {needs.model:,} for the model's weights"
        yield Problem("memory", found_text, expected=f"at most {available:,}, which are available")


def available_memory() -> int | None:
    """Bytes that a new process can have without swapping; None where the system does not say."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if ":" in line}
    return int(sizes["MemAvailable"]) * 1024 if "MemAvailable" in sizes else None


def disk_problems(needs: Needs, out: Path, work: Path) -> Iterator[Problem]:
    """Room for the export in the working folder and for the result, which are written one after the other."""
    homes: dict[int, tuple[Path, int]] = {}
    for place in (work, out):
        home = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
        device = home.stat().st_dev
        homes[device] = (home, homes.get(device, (home, 0))[1] + needs.export)
    for home, nbytes in homes.values():
        free = shutil.disk_usage(home).free
        if nbytes > free:
            yield Problem("disk", f"{free:,} bytes free", str(home), expected=f"{nbytes:,} for export and result")
