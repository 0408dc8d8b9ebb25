"""What calibration buys: SmolLM2-135M-Instruct in BF16, rounded to INT4, and calibrated to INT4 by `ckpt gptq`.

`python -m benchmarks.gptq` exports the model from a package, makes both builds with the real commands, and measures the
perplexity of each with transformers on text that calibration has not seen: sequences held back from the calibration
set, and the reference manual that comes with Python. Losses are compared window by window, since windows differ far
more from one another than builds do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.measuring import ENVIRONMENT, ROOT

RESULT = ROOT / "benchmarks" / "results" / "gptq.json"
RECIPE = ROOT / "benchmarks" / "smollm2-int4-g64-gptq.yaml"
SCHEME = ("--target", "Linear", "--bits", "4", "--group-size", "64")
WINDOW = 512
MANUAL_WINDOWS = 24

QUIET = ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
"""GPTQ goes column by column: steps so small that threads wait for one another longer than they compute."""

Windows = list[list[int]]
Losses = list[float]
"""Mean loss of each window, in nats a token."""


@dataclass(frozen=True)
class Difference:
    """Loss of one build less that of another, over windows of the same text: mean and its standard error."""

    mean: float
    standard_error: float

    @staticmethod
    def of(one: Losses, other: Losses) -> Difference:
        pairs = [a - b for a, b in zip(one, other, strict=True)]
        return Difference(mean(pairs), stdev(pairs) / math.sqrt(len(pairs)))


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; 1 where GPTQ is not better by twice the standard error on the sequences held back."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gptq", description=__doc__.partition(":")[0] if __doc__ else ""
    )
    parser.add_argument("--work", type=Path, help="where the checkpoints go (default: the temporary folder)")
    parser.add_argument("--result", type=Path, default=RESULT, help=f"default: {RESULT.relative_to(ROOT)}")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help=f"default: {RECIPE.relative_to(ROOT)}")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints")
    options = parser.parse_args(arguments)
    work = Path(tempfile.mkdtemp(prefix="ckpt-gptq-", dir=options.work))
    try:
        document = {
            "machine": machine(work),
            "versions": versions(),
            "command": shlex.join(["python", "-m", "benchmarks.gptq", *arguments]),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            **_measured(work, options.recipe),
        }
    finally:
        if not options.keep:
            shutil.rmtree(work)
    options.result.parent.mkdir(exist_ok=True)
    options.result.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for line in _lines(document):
        print(line)
    print(f"wrote {options.result}")
    gain = document["texts"][0]["rtn_less_gptq"]
    return int(gain["mean"] <= 2 * gain["standard_error"])


def _measured(work: Path, recipe: Path) -> dict[str, Any]:
    from demo.smollm2 import export_base

    base = export_base(work / "bf16")
    builds = {"bf16": base, "rtn": work / "rtn", "gptq": work / "gptq"}
    seconds = {"rtn": _ckpt("quantize", base, *SCHEME, "--out", builds["rtn"])}
    options = ("--compare-rtn", "--keep-work", "--work", work / "work")
    seconds["gptq"] = _ckpt("gptq", recipe, base, "--out", builds["gptq"], *options)
    statistics = json.loads(builds["gptq"].with_name("gptq.gptq.json").read_text(encoding="utf-8"))
    texts = {"held back": _held_back(work / "work" / "calibration.safetensors"), "Python's manual": _manual(base)}
    losses = {name: _losses(folder, texts) for name, folder in builds.items()}
    calibration = statistics["calibration"]
    return {
        "model": "SmolLM2-135M-Instruct",
        "scheme": "INT4 g64, every Linear",
        "calibration": {
            "sequences": calibration["report"]["calibration"]["sequences"],
            "tokens": calibration["report"]["calibration"]["tokens"],
            "sha256": calibration["sha256"],
        },
        "seconds": seconds,
        "texts": [
            _compared(name, windows, {build: losses[build][name] for build in builds})
            for name, windows in texts.items()
        ],
        "outputs": {key: statistics["comparison"][key] for key in ("sequences", "tokens", "all", "families")},
    }


def _ckpt(*arguments: str | Path) -> dict[str, float]:
    """Run `ckpt`; the seconds it took, by the clock and of a processor. SystemExit where it fails."""
    words = [str(word) for word in arguments]
    print("$ ckpt", shlex.join(words), flush=True)
    started, used = time.monotonic(), _processor_seconds()
    code = subprocess.run([sys.executable, "-m", "ckpt", *words], env=os.environ | QUIET, cwd=ROOT, check=False)
    if code.returncode:
        raise SystemExit(f"ckpt exits with {code.returncode}")
    return {"clock": round(time.monotonic() - started, 1), "processor": round(_processor_seconds() - used, 1)}


def _processor_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _held_back(path: Path) -> Windows:
    from surgery.calibration import read_set

    return [list(ids[:WINDOW]) for ids in read_set(path).held_back]


def _manual(base: Path) -> Windows:
    """The first windows of Python's language reference, which people have written."""
    from pydoc_data.topics import topics

    from transformers import AutoTokenizer

    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = AutoTokenizer.from_pretrained(base)(text, verbose=False)["input_ids"]
    return [ids[start : start + WINDOW] for start in range(0, MANUAL_WINDOWS * WINDOW, WINDOW)]


def _losses(folder: Path, texts: dict[str, Windows]) -> dict[str, Losses]:
    """Losses of the model in `folder`, computed in F32 so that rounding of activations does not blur them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return {
            name: [float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss) for ids in windows]
            for name, windows in texts.items()
        }


def _compared(name: str, windows: Windows, losses: dict[str, Losses]) -> dict[str, Any]:
    return {
        "text": name,
        "windows": len(windows),
        "tokens": sum(len(ids) - 1 for ids in windows),
        "perplexity": {build: math.exp(mean(found)) for build, found in losses.items()},
        "rtn_less_gptq": asdict(Difference.of(losses["rtn"], losses["gptq"])),
        "rtn_less_bf16": asdict(Difference.of(losses["rtn"], losses["bf16"])),
        "gptq_less_bf16": asdict(Difference.of(losses["gptq"], losses["bf16"])),
        "gptq_better_in": sum(a > b for a, b in zip(losses["rtn"], losses["gptq"], strict=True)),
    }


def _lines(document: dict[str, Any]) -> list[str]:
    lines = []
    for text in document["texts"]:
        perplexity, gain = text["perplexity"], text["rtn_less_gptq"]
        lines.append(
            f"{text['text']}: perplexity BF16 {perplexity['bf16']:.3f}, RTN {perplexity['rtn']:.3f}, "
            f"GPTQ {perplexity['gptq']:.3f}; RTN loses {gain['mean']:.4f} +- {gain['standard_error']:.4f} nats a token "
            f"more, in {text['gptq_better_in']} of {text['windows']} windows"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
