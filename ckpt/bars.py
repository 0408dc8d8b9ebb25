"""Progress on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def bars(hidden: bool, *, of_bytes: bool = False) -> Iterator[Progress | None]:
    """What shows bars, gone when they are done; None where nobody would see them. What a bar is called is shown as it
    is, since names may have brackets. `of_bytes`: how many, and how fast."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    amount = (DownloadColumn(), Speed()) if of_bytes else (TaskProgressColumn(),)
    words = TextColumn("{task.description}", markup=False)
    with Progress(
        words, BarColumn(), *amount, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as shown:
        yield shown
