"""A process that matches for another one: a line of JSON in, a line of JSON out, and nothing of this project loaded.

Asked: {"pattern", "names", "seconds"}. Answered: {"found": [true, ...], "seconds": processor time}, {"slow": number of
names that were done}, or {"invalid": why it is no regular expression}. A signal ends a match that takes too long: `re`
looks for signals, though for those of the main thread alone.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

MEMORY = 1 << 30
"""Bytes of address space: a match may keep a way back for each character."""


class _Stopped(BaseException):
    """The time is up."""


def main() -> None:
    """Answer until the other side has gone."""
    signal.signal(signal.SIGVTALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        print(json.dumps(_answer(**json.loads(line))), flush=True)


def _answer(pattern: str, names: Sequence[str], seconds: float) -> dict[str, Any]:
    found: list[bool] = []
    begun = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        match = re.compile(pattern).match
        found += (match(name) is not None for name in names)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except (_Stopped, MemoryError):
        return {"slow": len(found)}
    except (re.error, OverflowError, RecursionError) as error:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return {"invalid": str(error)}
    return {"found": found, "seconds": time.process_time() - begun}


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _Stopped


if __name__ == "__main__":
    main()
