"""The model as GPTQ needs it: whole, in BF16, and with a module for each projection of each expert."""

from __future__ import annotations

from typing import Any

from surgery.gptq.job import Job


def load_linearized(job: Job, *, onto_accelerator: bool = False) -> Any:
    """Load the base by the class that its config names. Experts stored in fused parameters become modules.

    Beside an accelerator the weights stay in memory, or on disk, and are brought to it as GPTQ needs them; a single
    forward pass rather has them there at once, as far as they fit.
    """
    import torch
    import transformers
    from llmcompressor.utils import load_context

    model_class = getattr(transformers, job.model_class)
    place = {"device_map": "auto" if onto_accelerator else "auto_offload"} if torch.accelerator.is_available() else {}
    with load_context(model_class):
        return model_class.from_pretrained(job.base, dtype=torch.bfloat16, local_files_only=True, **place)
