"""Rows of different length in batches that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches(lengths: Sequence[int], most_rows: int, most_tokens: int) -> Iterator[list[int]]:
    """Row numbers by length, longest first; a batch, padded to its longest row, has at most `most_tokens` tokens,
    unless one row alone has more."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if batch and (len(batch) == most_rows or (len(batch) + 1) * lengths[batch[0]] > most_tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
