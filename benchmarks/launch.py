"""Run one command and write down what it took: `python launch.py REPORT COMMAND...`, without the rest of this package.

A child's peak memory begins at that of the process which starts it, so this one imports next to nothing.
"""

import json
import os
import sys
import time


def main(report: str, command: list[str]) -> None:
    """Write seconds, the exit code, the peak in bytes, and the bytes that system calls read and wrote."""
    started = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - started
    with open(f"/proc/{child}/io") as file:  # kept until the child is reaped
        counts = dict(line.split(": ") for line in file.read().splitlines())
    _, status, usage = os.wait4(child, 0)
    found = {
        "seconds": seconds,
        "code": os.waitstatus_to_exitcode(status),
        "peak": usage.ru_maxrss * 1024,  # given in kB
        "read": int(counts["rchar"]),
        "written": int(counts["wchar"]),
    }
    with open(report, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
