"""Dense tensors against the base: which differ, which of that an exporter's rounding explains, which is put back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from building import LLAMA, Entries, pack, write_checkpoint  # noqa: E402
from qwen import body_experts, config, entries  # noqa: E402
from writing import change, codes, drafted, tensors, written  # noqa: E402

from checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from demo.damage import alter_norms, downcast_state  # noqa: E402
from surgery import Difference, compare_dense, keep_dense, restore_dense  # noqa: E402

NORM = "model.language_model.layers.0.input_layernorm.weight"
LONG = "model.language_model.embed_tokens.weight"


@pytest.fixture
def pair(qwen_moe_f32_base: Path, tmp_path: Path) -> tuple[Path, Path]:
    """(export, base): equal so far."""
    export = tmp_path / "export"
    shutil.copytree(qwen_moe_f32_base, export)
    return export, qwen_moe_f32_base


def compared(export: Path, base: Path) -> dict[str, Difference]:
    found = compare_dense(open_checkpoint(export), open_checkpoint(base))
    return {difference.name: difference for difference in found}


def test_equal_checkpoints_do_not_differ(pair: tuple[Path, Path]) -> None:
    assert compared(*pair) == {}


def test_norms_that_a_calibration_rounded_are_explained(pair: tuple[Path, Path]) -> None:
    export, base = pair
    alter_norms(export)
    before, after = tensors(base), tensors(export)
    expected = {name for name in before if not torch.equal(before[name], after[name])}
    found = compared(export, base)
    assert found.keys() == expected
    assert len(expected) > 8
    assert {(d.kind, d.detail) for d in found.values()} == {("explained", "re-rounded as an offset norm in BF16")}


def test_state_that_was_cast_is_explained(pair: tuple[Path, Path]) -> None:
    export, base = pair
    downcast_state(export)
    found = compared(export, base)
    assert {name.rpartition("linear_attn.")[2] for name in found} == {"A_log", "norm.weight"}
    assert {(d.kind, d.detail) for d in found.values()} == {("explained", "cast from F32 to BF16")}


@pytest.mark.parametrize(
    "exponent, way, detail",
    [
        (-18, lambda w: ((1 + w.float()) - 1).bfloat16(), "re-rounded as an offset norm in F32"),
        (-18, lambda w: w.half().bfloat16(), "rounded through F16"),
        (-9, lambda w: ((1 + w.half()) - 1).bfloat16(), "re-rounded as an offset norm in F16"),
        (-9, lambda w: w.float(), "cast from BF16 to F32"),
    ],
)
def test_other_roundings_are_explained(
    exponent: int, way: Callable[[Any], Any], detail: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    export, base_of = pair
    base = tmp_path / "base"
    shutil.copytree(base_of, base)
    values = torch.randn(256, generator=torch.Generator().manual_seed(2)).bfloat16() * 2.0**exponent
    change(base, lambda state: state.update({NORM: values}), holding=NORM)
    change(export, lambda state: state.update({NORM: way(values)}), holding=NORM)
    assert compared(export, base) == {NORM: Difference(NORM, "explained", detail)}


def test_a_scaled_norm_is_not_explained(pair: tuple[Path, Path]) -> None:
    export, base = pair
    change(export, lambda state: state[NORM].mul_(1.5), holding=NORM)
    (found,) = compared(export, base).values()
    largest = (tensors(export)[NORM].float() - tensors(base)[NORM].float()).abs().max()
    assert found == Difference(NORM, "unexplained", f"differs by up to {largest:.3g}, which no rounding explains")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_value_that_is_not_finite_is_never_explained(value: str, pair: tuple[Path, Path]) -> None:
    export, base = pair
    change(export, lambda state: state[NORM][3:4].fill_(float(value)), holding=NORM)
    (found,) = compared(export, base).values()
    assert (found.kind, found.detail) == ("unexplained", "differs by up to inf, which no rounding explains")


def test_equal_values_count_for_and_against_an_explanation(tmp_path: Path) -> None:
    """Only the last of three blocks that are read is re-rounded: no rounding of all of it did that."""
    rows = 2 * 1024 * 1024 // 128 + 64
    values = torch.randn(rows, 128, generator=torch.Generator().manual_seed(4)).bfloat16() * 0.02
    partly, wholly = values.clone(), (1 + values) - 1
    partly[-64:] = wholly[-64:]
    found = {}
    for name, stored in (("base", values), ("partly", partly), ("wholly", wholly)):
        raw = stored.view(torch.uint8).numpy().tobytes()
        found[name] = write_checkpoint(tmp_path / name, {"x.weight": ("BF16", (rows, 128), raw)}, LLAMA, shards=1)
    assert compared(found["partly"], found["base"])["x.weight"].kind == "unexplained"
    assert compared(found["wholly"], found["base"])["x.weight"].kind == "explained"


def test_what_is_no_number_must_be_equal(tmp_path: Path) -> None:
    folders = []
    for name, data, dtype in (("a", b"\x01\x00", "I8"), ("b", b"\x02\x00", "I8"), ("c", b"\x01\x00", "U8")):
        folders.append(write_checkpoint(tmp_path / name, {"ids": (dtype, (2,), data)}, LLAMA, shards=1))
    assert compared(folders[0], folders[0]) == {}
    assert compared(folders[1], folders[0])["ids"].detail == "other bytes"
    assert compared(folders[2], folders[0])["ids"].detail == "dtype U8, I8 in the base"


# what is missing, and what is there in another form


def stored(folder: Path, found: Entries) -> Checkpoint:
    return open_checkpoint(write_checkpoint(folder, found, config()))


def test_packed_modules_and_experts_taken_apart_are_not_missing(tmp_path: Path) -> None:
    base, packed = stored(tmp_path / "a", entries()), stored(tmp_path / "b", pack(entries(), body_experts))
    assert compare_dense(packed, base) == []
    one_by_one = {n: e for n, e in pack(entries(), body_experts).items() if ".experts." not in n}
    one_by_one |= {f"{module}.weight": ("BF16", shape, None) for module, shape in _experts()}
    single = stored(tmp_path / "c", one_by_one)
    assert compare_dense(single, base) == []
    assert compare_dense(base, single) == []


def _experts() -> list[tuple[str, tuple[int, ...]]]:
    owner = "model.language_model.layers.{}.mlp.experts.{}.{}"
    leaves = {"gate_proj": (64, 128), "up_proj": (64, 128), "down_proj": (128, 64)}
    return [(owner.format(n, e, leaf), shape) for n in range(4) for e in range(4) for leaf, shape in leaves.items()]


def test_a_tower_that_was_lost_is_missing_and_the_mtp_head_is_not_looked_at(tmp_path: Path) -> None:
    base = stored(tmp_path / "a", entries())
    kept = {name: entry for name, entry in entries().items() if ".visual." not in name and not name.startswith("mtp.")}
    found = compare_dense(stored(tmp_path / "b", kept), base)
    assert {d.kind for d in found} == {"missing"}
    assert {d.name for d in found} == {name for name in entries() if ".visual." in name}


def test_experts_that_are_in_no_form_there_are_no_damage_to_mend(tmp_path: Path) -> None:
    """Putting them back dense would hide that the export failed."""
    base = stored(tmp_path / "a", entries())
    lost = "model.language_model.layers.2.mlp.experts.down_proj"
    export = stored(tmp_path / "b", {name: entry for name, entry in entries().items() if name != lost})
    (found,) = compare_dense(export, base)
    assert (found.name, found.kind) == (lost, "unexplained")


def test_another_shape_is_not_explained(tmp_path: Path) -> None:
    base, export = entries(), entries()
    export[LONG] = ("BF16", (72, 128), None)
    (found,) = compare_dense(stored(tmp_path / "b", export), stored(tmp_path / "a", base))
    assert found == Difference(LONG, "unexplained", "shape [72, 128], [64, 128] in the base")


def test_progress_is_told_of_every_byte_compared(pair: tuple[Path, Path]) -> None:
    export, base = map(open_checkpoint, pair)
    told: list[int] = []
    compare_dense(export, base, told.append)
    body = sum(ref.nbytes for name, ref in base.tensors.items() if not name.startswith("mtp."))
    assert sum(told) == 2 * body


# putting back


def test_restore_puts_back_what_is_explained_or_missing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    export, base = pair
    alter_norms(export)
    downcast_state(export)
    found = list(compared(export, base).values())
    out = written(export, tmp_path / "out", partial(restore_dense, base=open_checkpoint(base), differences=found))
    assert compared(out, base) == {}
    summary = drafted(export, partial(restore_dense, base=open_checkpoint(base), differences=found)).steps[-1].summary
    assert summary.startswith(f"{len(found)} tensors: ")
    assert "6 cast from F32 to BF16" in summary


def test_restore_refuses_what_is_not_explained_until_it_is_named_or_kept(pair: tuple[Path, Path]) -> None:
    export, base = pair
    change(export, lambda state: state[NORM].mul_(1.5), holding=NORM)
    found = list(compared(export, base).values())
    restoring = partial(restore_dense, base=open_checkpoint(base))
    assert codes(drafted(export, partial(restoring, differences=found))) == ["dense-differs"]
    named = drafted(export, partial(restoring, differences=found, named=[r"re:.*input_layernorm\.weight$"]))
    assert codes(named) == []
    assert [step.operation for step in named.steps] == ["restore-dense"]
    kept = drafted(export, partial(restoring, differences=keep_dense(found, [NORM])))
    assert codes(kept) == []
    assert kept.steps == ()
