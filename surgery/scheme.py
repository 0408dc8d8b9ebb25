"""How a module is packed, and how compressed-tensors spells that in `config_groups`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Maths = Literal["eager", "fp32"]
"""Where a quotient is rounded before it becomes an integer: to the weight's dtype first ("eager": compressed-tensors on
a CPU, and on a GPU up to 0.18), or from 32 bits at once ("fp32": on a GPU from 0.19; the smaller error)."""

HEAD = "lm_head"
HEAD_TARGET = "re:.*lm_head$"
"""The one spelling that vLLM's main model and draft, SGLang and transformers all resolve to the head."""

GROUP_SIZES = (32, 64, 128)
"""The group sizes that Marlin kernels take, hence vLLM for experts."""


@dataclass(frozen=True)
class Scheme:
    """`group_size` is the number of columns that share a scale; None is one scale a row ("channel")."""

    bits: int = 4
    group_size: int | None = 128
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"{self.bits} bits; 4 and 8 are supported")
        if self.group_size is not None and self.group_size < 1:
            raise ValueError(f"group size {self.group_size}; a positive number of columns, or channel")

    def __str__(self) -> str:
        grouping = f"g{self.group_size}" if self.group_size else "channel"
        return f"INT{self.bits} {grouping}" + ("" if self.symmetric else " asymmetric")

    @property
    def parameters(self) -> dict[str, Any]:
        """The scheme as recipes and manifests spell it."""
        return {"bits": self.bits, "group_size": self.group_size or "channel", "symmetric": self.symmetric}

    @property
    def arguments(self) -> dict[str, Any]:
        """The `weights` entry of a config group, in the keys that every compressed-tensors release reads.

        Channel is written with group_size -1, which all releases take and without which vLLM refuses INT8 experts.
        """
        return {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "group" if self.group_size else "channel",
            "group_size": self.group_size or -1,
            "dynamic": False,
        }


@dataclass(frozen=True)
class Group:
    """A config group to be: which modules, by name or `re:` pattern, and how."""

    targets: tuple[str, ...]
    scheme: Scheme

    @property
    def parameters(self) -> dict[str, Any]:
        """The group as recipes and manifests spell it."""
        return {"targets": list(self.targets), **self.scheme.parameters}

    @property
    def entry(self) -> dict[str, Any]:
        """The group as config.json has it, the head in the spelling that every engine reads."""
        return {
            "targets": [HEAD_TARGET if target == HEAD else target for target in self.targets],
            "weights": self.scheme.arguments,
            "input_activations": None,
            "output_activations": None,
            "format": "pack-quantized",
        }
