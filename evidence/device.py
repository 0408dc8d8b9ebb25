"""`python -m evidence.device FULL OUT.json --seconds 400`: how long the GPU takes for a step of each full-size build.

A server's time a token is the longer of two: the GPU's, and that of the processor which feeds it. Here each build runs
in a process of its own with the servers' options, and CUDA events stand before its graph of a decode step and behind
the sampling; beside them are the kernels, by PyTorch's profiler, and the time on the clock. Builds load side by side
and are measured one after another, once all are there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evidence.run import ENVIRONMENT

BUILDS = ("experts", "body", "body-head")
PROMPT = 128
TOKENS = 128
ROUNDS = 5
PROFILED = 32
MOST_KERNELS = 40
STREAMS = (1, 5)

Result = dict[str, Any]


def main(arguments: Sequence[str]) -> None:
    """One build with `--build`; without, all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("full", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--build")
    options = parser.parse_args(arguments)
    if options.build:
        one(options.full / options.build, options.out, time.time() + options.seconds)
    else:
        every(options.full, options.out, time.time() + options.seconds)


def every(full: Path, out: Path, deadline: float) -> None:
    """Start all, wait, and put their results together, whatever became of each."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name in BUILDS:
        words = [str(full), str(part(out, name)), "--seconds", str(deadline - time.time()), "--build", name]
        with part(out, name).with_suffix(".log").open("wb") as log:
            command = [sys.executable, "-m", "evidence.device", *words]
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd="/tmp", start_new_session=True)
    for process in running.values():
        try:
            process.wait(timeout=max(1.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
    found = {name: _read(part(out, name)) for name in BUILDS}
    out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found)[:6000])


def part(out: Path, name: str) -> Path:
    return out.with_name(f"{out.stem}-{name}.json")


def one(checkpoint: Path, out: Path, deadline: float) -> None:
    """Load, wait for the others, measure alone."""
    os.environ.update(ENVIRONMENT)
    result: Result = {"build": checkpoint.name}
    try:
        engine = loaded(checkpoint, result)
        ready(out, deadline)
        with out.with_name("measuring").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result["streams"] = [measured(engine, streams) for streams in STREAMS]
    except BaseException:  # noqa: BLE001 - whatever vLLM raises is told
        result["error"] = traceback.format_exc()[-3000:]
    out.write_text(json.dumps(result))
    out.with_suffix(".ready").touch()
    sys.stdout.flush()
    os._exit(0)


def loaded(checkpoint: Path, result: Result) -> Any:
    """The engine in this process, with the options of `evidence.servers`."""
    import torch
    import vllm

    result["versions"] = {"vllm": vllm.__version__, "torch": torch.__version__}
    watch()
    began = time.time()
    engine = vllm.LLM(
        model=str(checkpoint),
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=8,
        kv_cache_memory_bytes=2 << 30,
        gpu_memory_utilization=0.15,
        limit_mm_per_prompt={"image": 0, "video": 0},
        compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16]},
        gdn_prefill_backend="triton",
        generation_config="vllm",
    )
    result["start_seconds"] = round(time.time() - began, 1)
    return engine


def ready(out: Path, deadline: float) -> None:
    """Say so, and wait until all builds are, so that none compiles or loads while another is measured."""
    out.with_suffix(".ready").touch()
    home = out.parent
    while len(list(home.glob("*.ready"))) < len(BUILDS) and time.time() < deadline - 60:
        time.sleep(0.5)


class Steps:
    """CUDA events of the steps that run a graph: before its replay and behind the sampling."""

    def __init__(self) -> None:
        self.replays: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []

    def replayed(self) -> None:
        self.replays.append(_event())

    def sampled(self) -> None:
        """A step of prefill replays many pieces and is left out."""
        if len(self.replays) == 1:
            self.pairs.append((self.replays[0], _event()))
        self.replays = []

    def milliseconds(self) -> list[float]:
        """Of each step so far, which is forgotten."""
        import torch

        torch.cuda.synchronize()
        found = [begin.elapsed_time(end) for begin, end in self.pairs]
        self.pairs, self.replays = [], []
        return found


STEPS = Steps()


def watch() -> None:
    """Have every replay of a graph and every sampling leave its event."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    replay, sample = torch.cuda.CUDAGraph.replay, GPUModelRunner._sample

    def replaying(graph: Any) -> None:
        STEPS.replayed()
        replay(graph)

    def sampling(runner: Any, *arguments: Any, **more: Any) -> Any:
        found = sample(runner, *arguments, **more)
        STEPS.sampled()
        return found

    torch.cuda.CUDAGraph.replay = replaying  # type: ignore[assignment, method-assign]
    GPUModelRunner._sample = sampling


def measured(engine: Any, streams: int) -> Result:
    """Medians over rounds, each a generation of TOKENS after PROMPT tokens; and the kernels' time by the profiler."""
    generate(engine, streams, TOKENS, seed=0)  # what is compiled on the way is not measured
    STEPS.milliseconds()
    rounds, clock = [], []
    for number in range(ROUNDS):
        first = generate(engine, streams, 1, seed=2 * number + 1)
        STEPS.milliseconds()
        whole = generate(engine, streams, TOKENS + 1, seed=2 * number + 2)
        steps = STEPS.milliseconds()
        rounds.append(statistics.median(steps))
        clock.append(1000 * (whole - first) / TOKENS)
    return {
        "streams": streams,
        "step_ms": statistics.median(rounds),
        "low": min(rounds),
        "high": max(rounds),
        "clock_ms": statistics.median(clock),
        "kernels": _attempt(lambda: kernels(engine, streams)),
    }


def kernels(engine: Any, streams: int) -> dict[str, tuple[float, float]]:
    """(how many, milliseconds) of each kernel a step, the dearest first: those of PROFILED more tokens.

    They run on two streams at times, so their sum is more than the step; and the profiler makes each a little longer.
    """
    few, many = _kernels(engine, streams, 1), _kernels(engine, streams, PROFILED + 1)
    found = {
        name: tuple(
            round((more - less) / PROFILED, 4) for more, less in zip(many[name], few.get(name, (0, 0.0)), strict=True)
        )
        for name in many
    }
    return dict(sorted(found.items(), key=lambda one: -one[1][1])[:MOST_KERNELS])  # type: ignore[arg-type]


def _kernels(engine: Any, streams: int, tokens: int) -> dict[str, tuple[int, float]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        generate(engine, streams, tokens, seed=99)
    STEPS.milliseconds()
    events = [event for event in profiled.key_averages() if event.self_device_time_total]
    return {event.key[:300]: (event.count, event.self_device_time_total / 1000) for event in events}


def generate(engine: Any, streams: int, tokens: int, seed: int) -> float:
    """Seconds on the clock for so many tokens of each stream, prompts drawn by `seed`."""
    import torch
    from vllm import SamplingParams

    drawn = torch.randint(1000, 40_000, (streams, PROMPT), generator=torch.Generator().manual_seed(seed))
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    engine.generate([{"prompt_token_ids": row} for row in drawn.tolist()], sampling, use_tqdm=False)
    return time.perf_counter() - began


def _event() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _attempt(ask: Callable[[], Any]) -> Any:
    """What `ask` gives, or the text of what it raises: a question beside the point must not end the run."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"[:400]


def _read(path: Path) -> Any:
    if path.exists():
        return json.loads(path.read_text())
    return {"error": path.with_suffix(".log").read_text(errors="replace")[-3000:]}


if __name__ == "__main__":
    main(sys.argv[1:])
