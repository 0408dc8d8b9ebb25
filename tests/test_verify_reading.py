"""What verify reads: no byte of a tensor twice, no more of one in a piece than fits, and by any number of threads."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from checkpoint import Files, open_checkpoint, survey
from verify import Case, blocks, compiled, verify
from verify.run import judge

PIECE = 4 << 20
"""More than any buffer of these checkpoints may have."""


class Watched(Files):
    """Files that remember which of their bytes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[Path, list[tuple[int, int]]] = defaultdict(list)

    def read_into(self, path: Path, offset: int, buffer: memoryview) -> None:
        self.spans[path].append((offset, offset + len(buffer)))
        super().read_into(path, offset, buffer)

    @property
    def overlaps(self) -> list[tuple[Path, int]]:
        """Where something was read again."""
        ordered = ((path, sorted(spans)) for path, spans in self.spans.items())
        return [(path, two[0]) for path, spans in ordered for one, two in pairwise(spans) if two[0] < one[1]]

    @property
    def nbytes(self) -> int:
        return sum(end - start for spans in self.spans.values() for start, end in spans)


@pytest.fixture(params=["reference", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernels":
        pytest.importorskip("numba")
        monkeypatch.setattr(compiled, "WORTH", 0)


@pytest.mark.usefixtures("way")
def test_every_byte_is_read_once_of_the_export_and_of_the_base(packed_moe: Path, qwen_moe_base: Path) -> None:
    export, base = survey(packed_moe), open_checkpoint(qwen_moe_base)
    files = Watched()
    with files:
        judge(Case(export, base, level="full", files=files))
    assert files.overlaps == []
    assert files.nbytes == sum(ref.nbytes for one in (export, base) for ref in one.tensors.values())
    assert max(end - start for spans in files.spans.values() for start, end in spans) < PIECE


def test_a_rule_asked_for_alone_reads_what_it_needs(packed_moe: Path, qwen_moe_base: Path) -> None:
    export, base = survey(packed_moe), open_checkpoint(qwen_moe_base)
    scales = sum(ref.nbytes for name, ref in export.tensors.items() if name.endswith("weight_scale"))
    files = Watched()
    with files:
        judge(Case(export, base, level="full", files=files), only=["N01"])
    assert files.nbytes == scales


@pytest.mark.parametrize("small", [0, blocks.SMALL], ids=["by threads", "without"])
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_threads_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, packed_moe: Path, qwen_moe_base: Path, workers: int, small: int
) -> None:
    expected = verify(packed_moe, base=qwen_moe_base, level="full")
    monkeypatch.setattr(blocks, "SMALL", small)
    seen: list[tuple[str, int, int]] = []
    report = verify(
        packed_moe, base=qwen_moe_base, level="full", workers=workers, progress=lambda *step: seen.append(step)
    )
    assert report == expected
    done = [(count, total) for what, count, total in seen if what == "packed weights"]
    assert done == sorted(done)
    assert done[-1] == (96, 96)
