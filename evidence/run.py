"""`python -m evidence.run CHECKPOINT --out FILE.json [--speculative 2]`: one checkpoint in vLLM, offline, on a GPU.

Says what became of it: an error and its text; or the greedy tokens, the log-probabilities of the five likeliest tokens
where it generates and along a prompt that is given, the acceptance of drafts, the quantization methods that vLLM chose,
and its log. Needs vLLM and nothing of `ckpt`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

TRUTH = "successors.json"
FIRST_TOKEN = 512
"""As in `evidence.small`, which is not imported: only vLLM and torch need be there."""

PROMPTS = (5, 33, 130, 300)
TOKENS = 32
TOP = 5

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CACHE_ROOT": "/tmp/vllm_cache",
    "VLLM_CONFIG_ROOT": "/tmp/vllm_cache",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

Result = dict[str, Any]


def main(arguments: list[str]) -> None:
    """Run, and write the result whatever happens; ends the process without vLLM's own tidying up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--speculative", type=int, default=0)
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    began = time.time()
    result: Result = {"checkpoint": options.checkpoint.name, "speculative": options.speculative, "log": []}
    try:
        serve(options.checkpoint, options.speculative, result)
        result["status"] = "ran"
    except BaseException as error:  # noqa: BLE001 - whatever vLLM raises is the finding
        result["status"] = "raised"
        result["error"] = f"{type(error).__name__}: {error}"[:1500]
        result["traceback"] = traceback.format_exc()[-3000:]
    result["seconds"] = round(time.time() - began, 1)
    options.out.write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def serve(checkpoint: Path, speculative: int, result: Result) -> None:
    """Load and generate. What is known is put into `result` as soon as it is."""
    import torch
    import vllm

    logging.getLogger("vllm").addHandler(_Keeping(result["log"]))
    result["versions"] = {"vllm": vllm.__version__, "torch": torch.__version__}
    successors = json.loads((checkpoint / TRUTH).read_text())
    began = time.time()
    engine = vllm.LLM(**engine_arguments(checkpoint, speculative))
    result["start_seconds"] = round(time.time() - began, 1)
    result["methods"] = _attempt(lambda: engine.apply_model(methods)[0])
    if speculative:
        result["draft_methods"] = _attempt(lambda: methods(_drafter(engine)))
    prompts = prompts_of(successors, torch.Generator().manual_seed(7))
    generate(engine, prompts, result)
    result["follows"] = share_followed(successors, prompts, result["tokens"])
    result |= acceptance(engine)
    result["logprobs"] = _attempt(lambda: logprobs(engine, prompts))
    result["prompt_logprobs"] = _attempt(lambda: prompt_logprobs(engine, successors))


def engine_arguments(checkpoint: Path, speculative: int) -> dict[str, Any]:
    """Eager, text alone, a small cache: many engines fit beside each other."""
    arguments: dict[str, Any] = {
        "model": str(checkpoint),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "kv_cache_memory_bytes": 2**30,
        "gpu_memory_utilization": 0.1,
        "gdn_prefill_backend": "triton",
        "disable_log_stats": False,
        "limit_mm_per_prompt": {"image": 0, "video": 0},
    }
    if speculative:
        arguments["speculative_config"] = {"method": "mtp", "num_speculative_tokens": speculative}
    return arguments


def prompts_of(successors: list[int], generator: Any) -> list[dict[str, list[int]]]:
    """Random prompts of four lengths, the same for every checkpoint."""
    import torch

    end = FIRST_TOKEN + len(successors)
    draws = (torch.randint(FIRST_TOKEN, end, (length,), generator=generator) for length in PROMPTS)
    return [{"prompt_token_ids": draw.tolist()} for draw in draws]


def generate(engine: Any, prompts: list[dict[str, list[int]]], result: Result) -> None:
    """Greedy tokens of each prompt, twice, with the time of each round."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    rounds = []
    for key in ("first_seconds", "second_seconds"):
        began = time.time()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        result[key] = round(time.time() - began, 2)
        rounds.append([list(output.outputs[0].token_ids) for output in outputs])
        result["tokens"] = rounds[0]
    result["repeats"] = rounds[0] == rounds[1]


def share_followed(successors: list[int], prompts: list[dict[str, list[int]]], tokens: list[list[int]]) -> float:
    """Share of generated tokens that are the successor of the one before."""
    pairs = [
        (before, after)
        for prompt, answer in zip(prompts, tokens, strict=True)
        for before, after in zip([prompt["prompt_token_ids"][-1], *answer], answer, strict=False)
    ]
    right = sum(before >= FIRST_TOKEN and successors[before - FIRST_TOKEN] == after for before, after in pairs)
    return round(right / len(pairs), 4)


def acceptance(engine: Any) -> Result:
    """Drafted and accepted tokens so far, from the engine's metrics; nothing without speculative decoding."""
    counts = {metric.name: getattr(metric, "value", None) for metric in engine.get_metrics()}
    drafted = counts.get("vllm:spec_decode_num_draft_tokens")
    if not drafted:
        return {}
    accepted = counts["vllm:spec_decode_num_accepted_tokens"]
    return {"drafted": drafted, "accepted": accepted, "acceptance": round(accepted / drafted, 4)}


def logprobs(engine: Any, prompts: list[dict[str, list[int]]]) -> list[list[dict[str, float]]]:
    """For each generated token of each prompt the log-probabilities of the five likeliest."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=TOP)
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    return [[_plain(place) for place in output.outputs[0].logprobs] for output in outputs]


def prompt_logprobs(engine: Any, successors: list[int]) -> list[list[dict[str, float]]]:
    """The same along two prompts of 96 successors in a row: equal contexts, whatever a checkpoint would generate."""
    from vllm import SamplingParams

    chains = [{"prompt_token_ids": _chain(successors, start, 96)} for start in (600, 601)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, prompt_logprobs=TOP)
    outputs = engine.generate(chains, sampling, use_tqdm=False)
    return [[_plain(place) for place in output.prompt_logprobs if place] for output in outputs]


def methods(model: Any) -> dict[str, int]:
    """Quantization methods by module name, numbers as `*`, with how many modules have them."""
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is None or "Unquantized" in type(method).__name__:
            continue
        kernel = getattr(getattr(module, "scheme", None), "kernel", None)
        detail = f" {type(kernel).__name__} {kernel.config.weight_type}" if kernel is not None else ""
        if hasattr(method, "wna16_backend"):
            detail = f" {method.wna16_backend} int{method.num_bits} g{method.group_size}"
        key = re.sub(r"\.\d+(?=\.|$)", ".*", name) + ": " + type(method).__name__ + detail
        counts[key] = counts.get(key, 0) + 1
    return counts


def _chain(successors: list[int], start: int, length: int) -> list[int]:
    chain = [start]
    while len(chain) < length:
        chain.append(successors[chain[-1] - FIRST_TOKEN])
    return chain


def _plain(place: dict[int, Any]) -> dict[str, float]:
    return {str(token): round(value.logprob, 4) for token, value in place.items()}


def _drafter(engine: Any) -> Any:
    executor = engine.llm_engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner.drafter.model


def _attempt(ask: Any) -> Any:
    """What `ask` gives, or the text of what it raises: a question beside the point must not end the run."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"[:400]


class _Keeping(logging.Handler):
    """Keeps vLLM's log lines."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.filename}: {record.getMessage()}")


if __name__ == "__main__":
    main(sys.argv[1:])
