"""Runs of `ckpt` by the thousand: each a process of its own, forked from this one, so that it need import nothing."""

from __future__ import annotations

import codecs
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ckpt.__main__ import COMMANDS

INTERRUPTED = 130


@dataclass(frozen=True)
class Ended:
    """How a run ended. `said` is stdout and stderr together, `seconds` the processor time."""

    code: int
    said: str
    seconds: float


def warm_up() -> None:
    """Import what the commands import, once for all children, some of which may not read this project's files."""
    for module in ("numpy", "torch", "verify", "surgery.kernels", "verify.kernels", "ckpt.comparing", "ckpt.writing"):
        import_module(module)
    for name in COMMANDS:
        import_module(f"ckpt.{name.replace('-', '_')}")
    codecs.lookup("ascii")


def ckpt(arguments: Sequence[str | Path], before: Callable[[], object] = lambda: None) -> Ended:
    """`ckpt ARGUMENTS` after `before`, which may change anything in the child."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            be_ckpt(list(map(str, arguments)), before, output.fileno())
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        said = output.read().decode(errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), said, usage.ru_utime + usage.ru_stime)


def be_ckpt(arguments: list[str], before: Callable[[], object], output: int) -> None:
    code = 99
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["ckpt", *arguments]
        before()
        from ckpt.__main__ import main

        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:  # noqa: BLE001 - a child must end here, whatever happens
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def handles(limit: int) -> Callable[[], object]:
    """Have the child open at most `limit` files."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
