"""What `compare` reads: nothing that is known to be equal, no byte twice, no more at a time than was allowed."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from differing import lone, measured, packed_state, states  # noqa: E402
from exporting import LONE  # noqa: E402
from hub import HubServer  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from checkpoint import Draft, File, Files, Refused, apply_plan, open_checkpoint, plan_for  # noqa: E402
from compare import compare, contents  # noqa: E402

NORM = "model.norm.weight"


class Watched(Files):
    """Files that remember which of their bytes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[File, list[tuple[int, int]]] = defaultdict(list)

    def read_into(self, file: File, offset: int, buffer: memoryview) -> None:
        self.spans[file].append((offset, offset + len(buffer)))
        super().read_into(file, offset, buffer)

    @property
    def overlaps(self) -> int:
        ordered = (sorted(spans) for spans in self.spans.values())
        return sum(two[0] < one[1] for spans in ordered for one, two in pairwise(spans))

    @property
    def nbytes(self) -> int:
        return sum(end - start for spans in self.spans.values() for start, end in spans)

    @property
    def largest(self) -> int:
        return max(end - start for spans in self.spans.values() for start, end in spans)


def linked(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in source.iterdir():
        os.link(path, folder / path.name)
    return folder


def grafted(source: Path, folder: Path) -> Path:
    """A folder that a run of ours wrote, its shards copied, with a manifest that has their hashes."""
    checkpoint = open_checkpoint(source)
    draft = Draft.of(checkpoint)
    kept = draft.without([NORM])
    apply_plan(plan_for(kept, folder), folder)
    return folder


def test_hard_links_are_not_read(packed4: Path, tmp_path: Path) -> None:
    files = Watched()
    result = compare(packed4, linked(packed4, tmp_path / "out"), files=files)
    assert files.nbytes == result.read == 0
    assert not result.is_different
    assert result.known["file"] == 2 * sum(ref.nbytes for ref in open_checkpoint(packed4).tensors.values())


def test_of_two_exports_of_a_base_only_what_differs_in_place_is_read(qwen_moe_base: Path, tmp_path: Path) -> None:
    """One shard of five is another file: the others are read on no side."""
    folder = linked(qwen_moe_base, tmp_path / "out")
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content)
    files = Watched()
    result = compare(qwen_moe_base, folder, files=files)
    tensors = open_checkpoint(folder).shards[shard.name].tensors.values()
    assert files.nbytes == result.read == 2 * sum(ref.nbytes for ref in tensors)
    assert {path.name for path in files.spans if isinstance(path, Path)} == {shard.name}
    assert not result.is_different


def test_what_two_manifests_have_the_same_hash_of_is_not_read(packed4: Path, tmp_path: Path) -> None:
    one, other = grafted(packed4, tmp_path / "a"), grafted(packed4, tmp_path / "b")
    files = Watched()
    result = compare(one, other, files=files)
    assert files.nbytes == 0
    assert (result.known["file"], result.known["hash"]) == (
        0,
        2 * sum(r.nbytes for r in open_checkpoint(one).tensors.values()),
    )
    assert set(states(result).values()) == {"equal"}
    everything = compare(one, other, hashes=False)
    assert everything.read == result.known["hash"]
    assert states(everything) == states(result)


def test_a_manifest_is_not_believed_of_what_was_written_since(packed4: Path, tmp_path: Path) -> None:
    one, other = grafted(packed4, tmp_path / "a"), grafted(packed4, tmp_path / "b")
    content = bytearray((other / LONE).read_bytes())
    content[-1] ^= 0x40
    (other / LONE).write_bytes(content)
    assert compare(one, other).counts["changed"] == 1


def test_every_byte_is_read_once_and_a_little_at_a_time(packed_moe: Path, qwen_moe_base: Path) -> None:
    files = Watched()
    result = compare(qwen_moe_base, packed_moe, files=files, memory=4 << 20, workers=1)
    shapes = sum(ref.nbytes for n, ref in open_checkpoint(packed_moe).tensors.items() if n.endswith("weight_shape"))
    nbytes = sum(ref.nbytes for place in (qwen_moe_base, packed_moe) for ref in open_checkpoint(place).tensors.values())
    assert files.overlaps == 0
    assert files.nbytes == result.read == nbytes - shapes
    assert files.largest <= 4 << 20


def test_what_is_equal_in_front_of_a_difference_is_read_once_more_on_one_side(tmp_path: Path) -> None:
    weight = torch.randn(64, 1024)
    one = lone(tmp_path / "a", {"w": weight})
    changed = weight.clone()
    changed[-1, -1] += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "elements_for", lambda memory, workers: 1 << 14)
        result = compare(one, lone(tmp_path / "b", {"w": changed}))
    (sums,) = measured(result).values()
    assert result.read == 2 * 4 * weight.numel() + 3 * 4 * (1 << 14)
    assert (sums.weights, sums.differing) == (weight.numel(), 1)
    assert sums.size == pytest.approx(float(weight.double().square().sum()))
    assert sums.largest == float(weight.abs().max())


def test_any_number_of_threads_finds_the_same(packed4: Path, llama: Path) -> None:
    expected = compare(llama, packed4, workers=1)
    seen: list[int] = []

    class Bar:
        def __init__(self, total: int) -> None:
            self.total = total

        def __enter__(self) -> object:
            return lambda name, nbytes: seen.append(nbytes)

        def __exit__(self, *_: object) -> None:
            seen.append(-self.total)

    assert compare(llama, packed4, workers=3, watched=Bar) == expected  # type: ignore[arg-type]
    assert sum(seen) <= 0
    assert -sum(seen) <= 16 * 14  # tensors weight_shape, which have no part in values


def test_a_budget_too_small_for_the_rows_is_refused(packed4: Path, llama: Path) -> None:
    with pytest.raises(Refused, match=r"8 rows of 256 weights on 2 threads do not fit in 1,000 bytes"):
        compare(llama, packed4, memory=1000, workers=2)


def test_headers_read_no_weights_and_a_sample_a_few(packed_moe: Path, qwen_moe_base: Path) -> None:
    files = Watched()
    result = compare(qwen_moe_base, packed_moe, level="headers", files=files)
    assert files.nbytes == result.read == 0
    assert set(states(result).values()) == {"not read"}
    assert result.is_different
    few = compare(qwen_moe_base, packed_moe, level="sample")
    assert len(measured(few)) == 3 * contents.SAMPLES
    whole = measured(compare(qwen_moe_base, packed_moe))
    assert measured(few) == {name: whole[name] for name in measured(few)}


def test_pairs_of_headers_alone_are_equal_as_far_as_they_tell(packed4: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed4, tmp_path / "copy")
    assert not compare(packed4, copy, level="headers").is_different
    state = load_file(copy / LONE)
    state[NORM] = state[NORM].float()
    save_file(state, copy / LONE, metadata={"format": "pt"})
    assert compare(packed4, copy, level="headers").is_different


def test_neighbours_on_the_hub_are_read_in_one_request(online: HubServer, tmp_path: Path) -> None:
    state = {f"model.layers.{n}.mlp.up_proj.weight": torch.randn(64, 64).to(torch.bfloat16) for n in range(40)}
    one = lone(tmp_path / "a", state)
    other = lone(tmp_path / "b", packed_state(state, 8, 32))
    online.publish("owner/b", other)
    open_checkpoint("hf://owner/b")
    online.reset()
    result = compare(one, "hf://owner/b")
    assert measured(result) == measured(compare(one, other))
    ranges = [request for request in online.counts if request.range]
    assert len(ranges) <= 8
    assert sum(request.bytes_sent for request in ranges) < result.read


def test_what_the_hub_has_the_same_hash_of_is_not_read(online: HubServer, packed4: Path) -> None:
    online.publish("owner/a", packed4)
    online.publish("owner/b", packed4)
    result = compare("hf://owner/a", "hf://owner/b")
    assert result.read == 0
    assert result.known["hash"] > 0
    assert not result.is_different
