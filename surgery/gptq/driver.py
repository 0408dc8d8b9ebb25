"""The process that runs llm-compressor: `python -m surgery.gptq.driver ACTION ...`.

It may be another Python than the one that runs `ckpt`, one in which nothing of ours is installed: it imports the
standard library, `checkpoint` and `surgery`, and within functions what llm-compressor brings along. A working folder
holds the job and takes the results; what there is to say in between goes to stderr.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkpoint import CkptError, Refused, open_checkpoint
from surgery.gptq.job import COMPARISON, EXPORT, REFUSAL, RESULT, SHARD_SIZE, Job, write_json
from surgery.gptq.loading import load_linearized
from surgery.gptq.matching import match_problems
from surgery.gptq.recording import recording
from surgery.gptq.versions import environment


def gptq(work: Path) -> None:
    """Calibrate by the job in `work`; leaves the calibration set, the export and the result there."""
    from surgery.gptq.rows import calibration_set

    job, times = Job.read(work), [time.monotonic()]
    built = calibration_set(job, work)
    model = load_linearized(job)
    problems = list(match_problems(model, job))
    if problems:
        raise Refused(problems)
    times.append(time.monotonic())
    with recording(model) as recorder:
        _calibrate(model, job, built.sequences)
    times.append(time.monotonic())
    _save(model, job, work)
    times.append(time.monotonic())
    steps = zip(("load", "calibrate", "save"), times[:-1], times[1:], strict=True)
    document = {
        "environment": environment(job.model_class),
        "calibration": {"sha256": built.sha256, "report": built.report.document(), "record": dict(built.record)},
        "seconds": {step: round(end - start, 3) for step, start, end in steps},
        "hessian_bytes": recorder.hessian_bytes,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "modules": {name: asdict(record) for name, record in recorder.records.items()},
    }
    write_json(work / RESULT, document)


def compare(work: Path, export: Path) -> None:
    """Compare `export` with round-to-nearest on the rows held back; leaves the comparison in `work`."""
    from surgery.gptq import comparing
    from surgery.gptq.rows import calibration_set

    job = Job.read(work)
    built = calibration_set(job, work)
    model = load_linearized(job, onto_accelerator=True)
    write_json(work / COMPARISON, comparing.compare(model, job, open_checkpoint(export), built.held_back))


def _calibrate(model: Any, job: Job, sequences: Sequence[Sequence[int]]) -> None:
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoTokenizer

    tensors = (torch.tensor(ids) for ids in sequences)
    rows: Any = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tensors]
    modifier = GPTQModifier(
        config_groups=dict(job.groups),
        ignore=list(job.ignore),
        dampening_frac=job.dampening,
        block_size=job.block_size,
        actorder=job.actorder,
    )
    oneshot(
        model=model,
        processor=AutoTokenizer.from_pretrained(job.base, local_files_only=True, trust_remote_code=False),
        # a loader is taken as it is, in its order; a dataset would be shuffled, and cut to 512 samples
        dataset=torch.utils.data.DataLoader(rows),
        recipe=modifier,
        sequential_targets=list(job.sequential_targets),
        sequential_targets_per_subgraph=job.together,
        moe_calibrate_all_experts=job.calibrate_all_experts,
    )


def _save(model: Any, job: Job, work: Path) -> None:
    """The export and its tokenizer, under its name only once it is whole."""
    from transformers import AutoTokenizer

    part = work / f"{EXPORT}.part"
    model.save_pretrained(part, save_compressed=True, max_shard_size=SHARD_SIZE)
    tokenizer = AutoTokenizer.from_pretrained(job.base, local_files_only=True, trust_remote_code=False)
    tokenizer.save_pretrained(part)
    part.replace(work / EXPORT)


def _refusing(work: Path, action: Callable[..., None], *arguments: Path) -> int:
    """Run the action; a refusal is left in `work` for the process that asked, with every problem in it."""
    try:
        action(*arguments)
    except CkptError as error:
        write_json(work / REFUSAL, {"problems": [asdict(problem) for problem in error.problems]})
        print(f"{error.headline}\n{error}", file=sys.stderr)
        return 3
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run `probe CLASS`, `gptq WORK` or `compare WORK EXPORT`; the exit code is 3 where that was refused."""
    match arguments:
        case ["probe", model_class]:
            print(json.dumps(environment(model_class)))
            return 0
        case ["gptq", work]:
            return _refusing(Path(work), gptq, Path(work))
        case ["compare", work, export]:
            return _refusing(Path(work), compare, Path(work), Path(export))
    raise SystemExit("usage: python -m surgery.gptq.driver probe CLASS | gptq WORK | compare WORK EXPORT")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
