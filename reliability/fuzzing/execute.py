"""`python -m reliability.fuzzing.execute TARGET [libFuzzer's options] CORPUS...`: one run of atheris over one target.

Only the modules of this project are instrumented: coverage of the packages that it uses says nothing about it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random

from reliability.fuzzing.target import Wrong

ROOMS = ("checkpoint", "surgery", "verify", "schemas", "cards", "serving", "fidelity", "latency", "ckpt")
SECONDS = 2.0
"""Of processor time that the longest input of a target may take."""

PROGRAM = "CKPT_FUZZ_PROGRAM"
"""The environment variable with what libFuzzer shall call to run itself again, as it does to merge corpora."""

OWN_SHARE = 0.7
"""Of mutations that are the target's own."""


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer's options say that it is enough, or something is found."""
    import atheris

    with atheris.instrument_imports(include=list(ROOMS)):
        from reliability.fuzzing.targets import target_of

        target = target_of(arguments[0])
        target.run(next(iter(target.seeds())))  # what is imported on the way is instrumented, too

    def one(data: bytes) -> None:
        begun = time.process_time()
        target.run(data)
        spent = time.process_time() - begun
        if spent > SECONDS:
            raise Wrong(f"{len(data)} bytes took {spent:.1f} s")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if target.mutate is None or random.random() > OWN_SHARE:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(data, random)[:most]

    atheris.Setup([os.environ.get(PROGRAM, sys.argv[0]), *arguments[1:]], one, custom_mutator=mutate)
    atheris.Fuzz()


def write_words(words: tuple[str, ...], path: Path) -> None:
    """A dictionary as libFuzzer reads it."""
    lines = ('"' + "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass")) + '"' for word in words)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
