"""The calls that a run makes, as a program that a person can read, change and run without us."""

from __future__ import annotations

from pprint import pformat
from typing import Any

from surgery.gptq.job import SHARD_SIZE, Job

_PROGRAM = """\
from pathlib import Path

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.utils import load_context
from surgery.calibration import read_set
from transformers import AutoTokenizer, {model_class}

BASE = {base}
sequences = read_set(Path({rows})).sequences  # ckpt calibrate writes it
tensors = [torch.tensor(ids) for ids in sequences]
rows = [{{"input_ids": ids, "attention_mask": torch.ones_like(ids)}} for ids in tensors]
recipe = GPTQModifier(
    config_groups={groups},
    ignore={ignore},
    dampening_frac={dampening},
    block_size={block_size},
    actorder={actorder},
)
with load_context({model_class}):
    model = {model_class}.from_pretrained(BASE, dtype=torch.bfloat16)  # and device_map="auto_offload" for a GPU
tokenizer = AutoTokenizer.from_pretrained(BASE)
oneshot(
    model=model,
    processor=tokenizer,
    dataset=torch.utils.data.DataLoader(rows),
    recipe=recipe,
    sequential_targets={targets},
    sequential_targets_per_subgraph={together},
    moe_calibrate_all_experts={all_experts},
)
model.save_pretrained("EXPORT", save_compressed=True, max_shard_size={shard_size})
tokenizer.save_pretrained("EXPORT")
"""


def script(job: Job, rows: str = "calibration.safetensors") -> str:
    """The program that calibrates by `job`, with the set in the file `rows`."""
    return _PROGRAM.format(
        model_class=job.model_class,
        base=_literal(job.base),
        rows=_literal(rows),
        groups=_literal({name: dict(group) for name, group in job.groups.items()}),
        ignore=_literal(list(job.ignore)),
        dampening=_literal(job.dampening),
        block_size=job.block_size,
        actorder=_literal(job.actorder),
        targets=_literal(list(job.sequential_targets)),
        together=job.together,
        all_experts=job.calibrate_all_experts,
        shard_size=_literal(SHARD_SIZE),
    )


def _literal(value: Any) -> str:
    """A Python literal, its further lines indented as an argument's are."""
    return pformat(value, width=100, sort_dicts=False).replace("\n", "\n    ")
