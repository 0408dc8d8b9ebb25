"""GPUs, as torch sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoint.errors import Problem, Refused, require

if TYPE_CHECKING:
    import torch


def cuda_device(index: int | None, asked: str | None = None) -> torch.device:
    """The GPU `index`, or the current one; `asked` is how a user named it.

    Raises MissingExtra without torch, Refused where torch sees none such.
    """
    require("a GPU", "torch", extra="torch")
    import torch

    if not torch.cuda.is_available():
        found = f"torch {torch.__version__} sees no CUDA device"
        raise Refused(Problem("no-gpu", found, remedy="Install a torch built for CUDA, or use --device cpu"))
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise Refused(Problem("no-gpu", f"no CUDA device {asked or index}", expected=f"cuda:0 to cuda:{count - 1}"))
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)
