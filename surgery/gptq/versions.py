"""What the environment has: packages, the model's class, an accelerator. Runs there, and loads no model."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")


def environment(model_class: str) -> dict[str, Any]:
    """Versions by package (None: not installed), what llm-compressor asks of them and does not get, and the rest."""
    versions = {package: _version(package) for package in PACKAGES}
    device = _accelerator() if versions["torch"] else None
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": versions,
        "unmet": _unmet(versions) if versions["llmcompressor"] else [],
        "has_class": bool(versions["transformers"]) and _has_class(model_class),
        "accelerator": device[0] if device else None,
        "accelerator_bytes": device[1] if device else 0,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unmet(versions: dict[str, str | None]) -> list[str]:
    """Requirements of llm-compressor on the other packages that what is installed does not satisfy."""
    from packaging.requirements import Requirement

    asked = (Requirement(text) for text in metadata.requires("llmcompressor") or ())
    return [
        f"{one.name}{one.specifier}"
        for one in asked
        if one.name in versions and not one.marker and not one.specifier.contains(versions[one.name] or "0", True)
    ]


def _has_class(name: str) -> bool:
    import transformers

    return name in dir(transformers)  # its lazy module lists what it has without importing it


def _accelerator() -> tuple[str, int] | None:
    """Name and memory of the first accelerator."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return properties.name, properties.total_memory
