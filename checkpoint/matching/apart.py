"""Matching in another process, which is stopped where it takes too long."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

CHILD = Path(__file__).with_name("child.py")

PATIENCE = 60.0
"""Seconds on the clock after which the process is given up, whatever processor time it was given."""


class Slow(Exception):
    """The time was up, or the memory."""


class Apart:
    """The process, started when it is first asked and again after it was stopped. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def match(self, pattern: str, names: Sequence[str], seconds: float) -> tuple[list[bool], float]:
        """Does `pattern` match at the start of each name? And the processor time that it took.

        Raises re.error, and Slow after `seconds` of processor time.
        """
        asked = json.dumps({"pattern": pattern, "names": list(names), "seconds": seconds}).encode() + b"\n"
        with self._lock:
            try:
                answer = self._asked(asked)
            except BaseException:  # an interrupt, too, leaves an answer in the pipe that nobody asked for
                self._stop()
                raise
        if "invalid" in answer:
            raise re.error(answer["invalid"])
        if "found" not in answer:
            raise Slow
        return list(answer["found"]), float(answer["seconds"])

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _asked(self, asked: bytes) -> dict[str, Any]:
        process = self._started()
        if process.stdin is None or process.stdout is None:
            raise Slow
        try:
            process.stdin.write(asked)
            process.stdin.flush()
        except OSError as error:
            raise Slow from error
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        line = process.stdout.readline() if ready else b""
        if not line:
            raise Slow
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            command = [sys.executable, "-I", "-S", str(CHILD)]
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            try:
                # of its own session: an interrupt of the terminal is for us, who then stop it
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)
            except OSError as error:
                raise Slow from error
            self._owner = os.getpid()
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


@lru_cache(maxsize=1)
def apart() -> Apart:
    """The one of this process."""
    one = Apart()
    atexit.register(one.close)
    return one
