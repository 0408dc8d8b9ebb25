"""Two stories told with the real `ckpt` command; run as `python -m demo.run [--work DIR]`.

A: a language model is quantized, verified, and still answers. B: an export of a mixture of experts comes back damaged,
is found out, mended and verified. Every command is printed before it runs; the first one to fail ends the demo.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Also the fused names that engines give these layers (qkv_proj, gate_up_proj), so that none is left out there.
LINEARS = "re:.*_proj$"
QUESTION = "What is the capital of France?"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def main() -> None:
    """Tell both stories in the folder given with `--work`, or in a new temporary one."""
    parser = argparse.ArgumentParser(description="Two stories told with the real ckpt command.")
    parser.add_argument("--work", type=Path, help="folder for the checkpoints, new or empty (default: a temporary one)")
    work: Path = parser.parse_args().work or Path(tempfile.mkdtemp(prefix="ckpt-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        parser.error(f"{work} is not empty: give a new folder")
    quantize_a_language_model(work)
    mend_an_export(work)
    say(f"Both stories ended well. The checkpoints are in {work}.")


def quantize_a_language_model(work: Path) -> None:
    """Story A: SmolLM2-135M-Instruct to INT4, checked, and asked the same question before and after."""
    base, int4 = work / "SmolLM2", work / "SmolLM2-INT4"
    say("A. Quantize a language model. Its base comes from a package on this machine:")
    demo("smollm2", "export", base)
    ckpt("inspect", base)
    scheme = ("--target", LINEARS, "--bits", "4", "--group-size", "32")
    quantize = ("quantize", base, "--out", int4, *scheme)
    say("What would quantizing write? And then for real:")
    ckpt(*quantize, "--dry-run")
    ckpt(*quantize)
    ckpt("verify", int4, "--base", base)
    say("transformers loads both and answers:")
    demo("smollm2", "generate", base, QUESTION)
    demo("smollm2", "generate", int4, QUESTION)


def mend_an_export(work: Path) -> None:
    """Story B: a quantized mixture of experts, damaged as exporters do, found out and made whole."""
    base, export = work / "Qwen-MoE", work / "Qwen-MoE-export"
    fixed, final = work / "Qwen-MoE-fixed", work / "Qwen-MoE-INT4-INT8"
    say("B. Mend an export. A small Qwen MoE, its experts quantized:")
    demo("qwen_moe", "build", base)
    ckpt("quantize", base, "--out", export, "--preset", "experts-int4-g32")
    say("What exporters do to it: no draft head, other norms, state downcast, side files and ignore list rewritten:")
    demo("damage", export)
    ckpt("verify", export, "--base", base, expected=1)
    say("Mend it, quantize the head, and check again:")
    ckpt("fixup", export, "--base", base, "--out", fixed)
    ckpt("int8-head", fixed, "--out", final)
    ckpt("verify", final, "--base", base)
    say("transformers loads it and predicts what the base predicts:")
    demo("qwen_moe", "compare", base, final)


def ckpt(*arguments: str | Path, expected: int = 0) -> None:
    """Print and run `ckpt` with `arguments`; SystemExit unless it exits with `expected`."""
    words = show("ckpt", arguments)
    code = subprocess.run([sys.executable, "-m", "ckpt", *words], check=False).returncode
    if code != expected:
        raise SystemExit(f"demo stopped: the command above exited with {code}, expected was {expected}")


def demo(module: str, *arguments: str | Path) -> None:
    """Print and run a module of this package with `arguments`; SystemExit with what it complained of, if it fails."""
    words = show(f"python -m demo.{module}", arguments)
    command = [sys.executable, "-m", f"demo.{module}", *words]
    # The libraries below it fill stderr with progress and advice, which is of interest only if it fails.
    done = subprocess.run(command, env=os.environ | OFFLINE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\ndemo stopped: the command above exited with {done.returncode}")


def show(program: str, arguments: Sequence[str | Path]) -> list[str]:
    """Print the command as a person would type it; returns its arguments as strings."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ {program} {shlex.join(words)}", flush=True)
    return words


def say(text: str) -> None:
    """Print a line of the story."""
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
