"""One call timed inside its process: `python -m benchmarks.inside ours.quantize '{"src": ...}' '{"src": ...}'`.

The first arguments are those of a small call that is not timed, so that imports, compiled kernels and whatever else a
program pays for once are apart. Prints `{"seconds": ...}` as its last line.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from benchmarks.measuring import python

Arguments = Mapping[str, str | bool]


def inside(operation: str, small: Arguments, real: Arguments) -> tuple[str, ...]:
    """The command that times `operation`, a function of `benchmarks.ours` or `benchmarks.peers`."""
    return python("benchmarks.inside", operation, json.dumps(dict(small)), json.dumps(dict(real)))


def main(arguments: Sequence[str]) -> None:
    """Call the operation twice and print how long the second call took."""
    module, _, name = arguments[0].partition(".")
    operation: Callable[..., object] = getattr(import_module(f"benchmarks.{module}"), name)
    small, real = (json.loads(text) for text in arguments[1:])
    seconds = [_timed(operation, each) for each in (small, real)]
    print(json.dumps({"seconds": seconds[1]}))


def _timed(operation: Callable[..., object], arguments: Arguments) -> float:
    if "out" in arguments:
        shutil.rmtree(str(arguments["out"]), ignore_errors=True)
    started = time.perf_counter()
    operation(**arguments)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1:])
