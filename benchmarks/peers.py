"""What other tools do for the same job, to be timed by `benchmarks.inside`.

Each is called as its documentation says, with its own defaults, except that it computes on the CPU.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def installed(*packages: str) -> bool:
    """Are all of them here? Nothing is imported."""
    return all(find_spec(package) is not None for package in packages)


def model_free_ptq(src: str, out: str, target: str, bits: str, group_size: str) -> None:
    """llm-compressor's round-to-nearest without a model, INT weights in symmetric groups."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import model_free_ptq as quantize

    weights = QuantizationArgs(
        num_bits=int(bits), type="int", symmetric=True, strategy="group", group_size=int(group_size), dynamic=False
    )
    quantize(src, out, scheme=QuantizationScheme(targets=[target], weights=weights), device="cpu")


def save_mtp(base: str, export: str) -> None:
    """compressed-tensors' graft of an MTP head into an export, in place."""
    from compressed_tensors.utils.mtp import save_mtp_tensors_to_checkpoint

    save_mtp_tensors_to_checkpoint(base, export)


def read_headers(src: str) -> None:
    """All tensor names by safetensors' own reader."""
    from safetensors import safe_open

    for path in sorted(Path(src).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as shard:
            list(shard.keys())


if __name__ == "__main__":
    read_headers(sys.argv[1])
