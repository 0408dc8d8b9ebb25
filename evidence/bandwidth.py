"""`python -m evidence.bandwidth OUT.json`: bytes a second of the card's memory, copied and read, through PyTorch.

Buffers of 4 GiB, far larger than the cache; the median of twenty runs, timed by CUDA events after three that are not.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NBYTES = 4 << 30
ROUNDS = 20


def main(out: Path) -> None:
    """Measure and write."""
    import torch

    source = torch.randint(-128, 128, (NBYTES,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    words = source.view(torch.int32)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_second": 2 * NBYTES / seconds(lambda: target.copy_(source)),
        "read_bytes_per_second": NBYTES / seconds(words.max),
    }
    out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def seconds(work: Callable[[], Any]) -> float:
    """The median time of `work` on the device."""
    import torch

    times: list[float] = []
    for _ in range(ROUNDS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times[3:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
