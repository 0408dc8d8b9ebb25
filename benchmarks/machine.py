"""On what, and with what, a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.measuring import ROOT

PACKAGES = ("numpy", "torch", "numba", "safetensors", "compressed-tensors", "llmcompressor")


def machine(work: Path) -> dict[str, str]:
    """Processor, memory, kernel, and the file system that `work` lies on."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_memory() / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(work),
    }


def versions() -> dict[str, str]:
    """Of Python, of ckpt, and of every package that takes part."""
    return {"ckpt": _ckpt(), "python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    names = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(work: Path) -> str:
    return _said("findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(work)) or "unknown"


def _ckpt() -> str:
    """The version, and the commit where this is a clone."""
    commit = _said("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    number = str(project["version"])
    return f"{number} ({commit})" if commit else number


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
