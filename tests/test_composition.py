"""Operations composed in one draft write what the commands write one after another: the same bytes in every file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from writing import Operation, codes, digests, drafted, written  # noqa: E402

from checkpoint import Draft, open_checkpoint  # noqa: E402
from demo.damage import damage_export  # noqa: E402
from surgery import (  # noqa: E402
    Group,
    Scheme,
    add_ignore,
    compare_dense,
    derive,
    graft,
    graft_mtp,
    int8_head,
    load_preset,
    quantize,
    restore_dense,
    restore_files,
)

INDEX = "model.safetensors.index.json"
Layout = Callable[[Path], None]


def reshard(folder: Path, place: Callable[[str, int], str], *, index: bool = True) -> None:
    """Put every tensor of `folder` in the shard that `place(name, position)` says."""
    state: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
        path.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    shard_of = {name: place(name, position) for position, name in enumerate(sorted(state))}
    for shard in set(shard_of.values()):
        held = {name: tensor for name, tensor in state.items() if shard_of[name] == shard}
        save_file(held, folder / shard, metadata={"format": "pt"})
    if index:
        total = sum(tensor.nbytes for tensor in state.values())
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": shard_of}, indent=2))


def one_for_mtp_and_head(name: str, position: int) -> str:
    special = ("mtp." in name, name.startswith("lm_head"))
    number = 3 if special[0] else 2 if special[1] else 1
    return f"model-{number:05d}-of-00003.safetensors"


LAYOUTS: dict[str, Layout] = {
    "five shards": lambda folder: None,
    "a lone file": lambda folder: reshard(folder, lambda *_: "model.safetensors", index=False),
    "a lone file with an index": lambda folder: reshard(folder, lambda *_: "model.safetensors"),
    "a lone file of another name": lambda folder: reshard(folder, lambda *_: "weights.safetensors", index=False),
    "shards without numbers": lambda folder: reshard(folder, lambda _, position: f"part{position % 2}.safetensors"),
    "head and MTP in shards of their own": lambda folder: reshard(folder, one_for_mtp_and_head),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def assert_composes(source: Path, work: Path, operations: Sequence[Operation]) -> Path:
    """One draft, and one command for each operation, end in the same files."""
    composed = written(source, work / "composed", *operations)
    step = source
    for number, operation in enumerate(operations):
        step = written(step, work / f"step{number}", operation)
    assert digests(step) == digests(composed)
    return composed


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


@pytest.mark.parametrize("preset", ["experts-int4-g32", "body-int4-g128"])
def test_quantize_and_int8_head(preset: str, layout: Layout, qwen_moe_base: Path, tmp_path: Path) -> None:
    source = copied(qwen_moe_base, tmp_path / "source")
    layout(source)
    found = load_preset(preset)
    packing = partial(quantize, groups=found.groups, ignore=found.ignore)
    assert_composes(source, tmp_path, [packing, int8_head])


def test_quantize_with_the_mtp_head_back(layout: Layout, qwen_moe_base: Path, tmp_path: Path) -> None:
    source = copied(qwen_moe_base, tmp_path / "source")
    layout(source)
    packing = partial(quantize, groups=load_preset("experts-int4-g32").groups)
    assert_composes(source, tmp_path, [packing, partial(graft_mtp, base=open_checkpoint(qwen_moe_base)), derive])


@pytest.fixture(scope="module")
def damaged(qwen_moe_f32_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    preset = load_preset("body-int4-g128")
    packing = partial(quantize, groups=preset.groups, ignore=preset.ignore)
    out = written(qwen_moe_f32_base, tmp_path_factory.mktemp("damaged") / "out", packing)
    damage_export(out)
    return out


def mending(base: Path) -> list[Operation]:
    source = open_checkpoint(base)

    def restoring(draft: Draft) -> Draft:
        return restore_dense(draft, source, compare_dense(draft.origin, source))

    return [partial(graft_mtp, base=source), restoring, partial(restore_files, base=source), derive, int8_head]


def test_mending_an_export(layout: Layout, damaged: Path, qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    source = copied(damaged, tmp_path / "source")
    layout(source)
    assert_composes(source, tmp_path, mending(qwen_moe_f32_base))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 2, 1, 0, 4), (2, 4, 0, 1, 3), (4, 0, 3, 1, 2)])
def test_mending_in_any_order_composes(
    order: tuple[int, ...], damaged: Path, qwen_moe_f32_base: Path, tmp_path: Path
) -> None:
    steps = mending(qwen_moe_f32_base)
    assert_composes(damaged, tmp_path, [steps[number] for number in order])


def test_an_export_that_lost_its_tower_and_its_head(
    layout: Layout, damaged: Path, qwen_moe_f32_base: Path, tmp_path: Path
) -> None:
    """Three kinds of new shards at once: for the MTP head, for what is restored, for the head."""
    source = copied(damaged, tmp_path / "source")
    state: dict[str, Any] = {}
    for path in sorted(source.glob("*.safetensors")):
        state |= load_file(path)
        path.unlink()
    kept = {name: t for name, t in state.items() if not name.startswith(("model.visual.", "lm_head"))}
    save_file(kept, source / "model.safetensors", metadata={"format": "pt"})
    (source / INDEX).unlink()
    layout(source) if (source / INDEX).exists() else reshard(source, lambda *_: "model.safetensors", index=False)
    base = open_checkpoint(qwen_moe_f32_base)
    head = partial(int8_head, base=base)
    vision = partial(graft, source=base, patterns=["re:model.visual.*"])
    composed = assert_composes(source, tmp_path, [partial(graft_mtp, base=base), vision, derive, head])
    shards = sorted(path.name for path in composed.glob("*.safetensors"))
    assert shards == [
        "model-00001-of-00001.safetensors",
        "model-graft.safetensors",
        "model-head.safetensors",
        "model-mtp.safetensors",
    ]


def test_several_grafts_and_edits(layout: Layout, qwen_moe_f32_base: Path, tmp_path: Path) -> None:
    source = copied(qwen_moe_f32_base, tmp_path / "source")
    layout(source)
    base = open_checkpoint(qwen_moe_f32_base)
    operations: list[Operation] = [
        partial(quantize, groups=[Group((r"re:.*self_attn\.o_proj$",), Scheme(8, None))]),
        partial(graft, source=base, patterns=["re:.*input_layernorm.weight$"]),
        partial(add_ignore, entries=["re:.*rotary.*"]),
        partial(graft, source=base, patterns=["re:.*A_log$"]),
    ]
    assert_composes(source, tmp_path, operations)


def test_a_refusal_is_told_once_and_beside_those_of_later_operations(qwen_moe_base: Path) -> None:
    """That nothing is quantized then is no fault of its own."""
    refused = partial(quantize, groups=[Group(("re:nonesuch",), Scheme(4, 32))])
    assert codes(drafted(qwen_moe_base, refused, derive, int8_head)) == ["target-unmatched"]
    odd = partial(int8_head, scheme=Scheme(8, 96))
    assert codes(drafted(qwen_moe_base, refused, odd)) == ["target-unmatched", "group-size"]
    assert codes(drafted(qwen_moe_base, int8_head)) == ["not-quantized"]


def test_an_operation_with_nothing_to_do_leaves_every_byte(damaged: Path, tmp_path: Path) -> None:
    """Not even the headers are written anew."""
    out = written(damaged, tmp_path / "out")
    assert digests(out) == digests(damaged)


@pytest.mark.parametrize("preset", ["experts-int4-g32", "body-int4-g128"])
def test_transformers_predicts_with_a_packed_build_what_it_predicts_with_the_base(
    preset: str, qwen_moe_base: Path, tmp_path: Path
) -> None:
    from demo.qwen_moe import logits

    found = load_preset(preset)
    packing = partial(quantize, groups=found.groups, ignore=found.ignore)
    out = written(qwen_moe_base, tmp_path / "out", packing, int8_head)
    tokens = list(range(20, 84))
    before, after = logits(qwen_moe_base, tokens), logits(out, tokens)
    assert after.isfinite().all()
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    drift = (before.log_softmax(-1) - after.log_softmax(-1)).gather(-1, before.topk(5).indices).abs().mean()
    assert drift < 0.5
