"""`compare`: errors as compressed-tensors and torch find them, and every planted change found and named."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from building import LLAMA, quantization, scheme, write_json  # noqa: E402
from differing import (  # noqa: E402
    altered,
    config,
    entry,
    expected,
    found,
    lone,
    measured,
    packed_state,
    states,
    weights_of,
)
from exporting import DOWN, GATE, LONE, UP, State, changed, swap  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from compare import compare  # noqa: E402
from verify import compiled  # noqa: E402

CASES = {
    "INT4 g32": (4, 32, True),
    "INT4 g64 asymmetric": (4, 64, False),
    "INT4 g128": (4, 128, True),
    "INT8 channel": (8, None, True),
    "INT8 g32 asymmetric": (8, 32, False),
    "INT4 channel asymmetric": (4, None, False),
}


@pytest.fixture(autouse=True, params=["reference", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All is compared twice: as small checkpoints are, and as large ones."""
    way = str(request.param)
    if way == "kernels":
        pytest.importorskip("numba")
        monkeypatch.setattr(compiled, "WORTH", 0)
    return way


@pytest.fixture(scope="module")
def base(llama: Path) -> State:
    state: State = load_file(llama / LONE)
    return state


def is_packed(name: str) -> bool:
    return name.endswith("_proj.weight")


def export(base: State, folder: Path, bits: int, group: int | None, *, symmetric: bool = True) -> Path:
    """The Linear modules of the layers packed."""
    body = packed_state({k: v for k, v in base.items() if is_packed(k)}, bits, group, symmetric=symmetric)
    rest = {name: tensor for name, tensor in base.items() if not is_packed(name)}
    return lone(folder, rest | body, config(bits, group, symmetric=symmetric))


@pytest.mark.parametrize("bits, group, symmetric", CASES.values(), ids=CASES)
def test_errors_are_those_of_decompressed_weights_in_64_bits(
    llama: Path, base: State, tmp_path: Path, bits: int, group: int | None, symmetric: bool
) -> None:
    folder = export(base, tmp_path / "out", bits, group, symmetric=symmetric)
    result = compare(llama, folder)
    values = weights_of(folder)
    assert {name for name, state in states(result).items() if state == "changed"} == set(filter(is_packed, base))
    assert {name for name, state in states(result).items() if state == "equal"} == {
        name for name in base if not is_packed(name)
    }
    for name, sums in measured(result).items():
        assert found(sums) == pytest.approx(expected(base[name], values[name]), rel=1e-6), name
    size = sum(float(base[name].double().square().sum()) for name in filter(is_packed, base))
    error = sum(float((values[n].double() - base[n].double()).square().sum()) for n in filter(is_packed, base))
    assert result.total is not None
    assert result.total.relative == pytest.approx((error / size) ** 0.5)


def test_packed_against_packed_of_other_bits_and_groups(base: State, tmp_path: Path) -> None:
    fine, coarse = export(base, tmp_path / "a", 8, 32), export(base, tmp_path / "b", 4, 64, symmetric=False)
    ours, theirs = weights_of(fine), weights_of(coarse)
    result = compare(fine, coarse)
    for name, sums in measured(result).items():
        assert found(sums) == pytest.approx(expected(ours[name], theirs[name]), rel=1e-6)
    assert entry(result, f"{UP}.weight").storage == ("INT8 g32", "INT4 g64 asymmetric")


def test_a_dense_copy_of_packed_weights_is_equal_in_value(base: State, tmp_path: Path) -> None:
    folder = export(base, tmp_path / "packed", 4, 32)
    result = compare(folder, lone(tmp_path / "dense", weights_of(folder)))
    assert {name for name, state in states(result).items() if state == "equal in value"} == set(filter(is_packed, base))
    assert result.counts["changed"] == 0
    assert result.is_different


def test_a_cast_that_loses_nothing_is_equal_in_value_and_one_that_does_is_measured(
    llama: Path, base: State, tmp_path: Path
) -> None:
    wide = {name: tensor.float() for name, tensor in base.items()}
    folder = lone(tmp_path / "wide", wide)
    assert set(states(compare(llama, folder)).values()) == {"equal in value"}
    wide["model.norm.weight"] = wide["model.norm.weight"] + 2**-12
    save_file(wide, folder / LONE, metadata={"format": "pt"})
    result = compare(folder, llama)
    assert list(measured(result)) == ["model.norm.weight"]
    assert result.measured[0].storage == ("F32", "BF16")


def test_a_folder_and_its_copy_do_not_differ(packed4: Path, tmp_path: Path) -> None:
    result = compare(packed4, shutil.copytree(packed4, tmp_path / "copy"))
    assert not result.is_different
    assert set(states(result).values()) == {"equal"}
    assert result.read == sum(
        ref.nbytes for one in result.entries for w in (one.pair.a, one.pair.b) for ref in w.parts.values()
    )


def halve(state: State) -> None:
    state[f"{UP}.weight_scale"] *= 0.5


def alter(state: State) -> None:
    state["model.norm.weight"][7] = 1.5


def clear_a_group(state: State) -> None:
    """Code 8 stands for 0."""
    state[f"{UP}.weight_packed"][3, 4:8] = torch.tensor(0x88888888 - (1 << 32), dtype=torch.int32)


def saturate(state: State) -> None:
    state[f"{DOWN}.weight_packed"][:64] = -1


PLANTED: list[tuple[Callable[[State], object], str]] = [
    (halve, f"{UP}.weight"),
    (alter, "model.norm.weight"),
    (clear_a_group, f"{UP}.weight"),
    (saturate, f"{DOWN}.weight"),
]


@pytest.mark.parametrize("damage, name", PLANTED)
def test_a_planted_change_is_found_and_named(
    packed4: Path, tmp_path: Path, damage: Callable[[State], object], name: str
) -> None:
    result = compare(packed4, changed(packed4, tmp_path / "out", damage))
    assert [one.name for one in result.entries if one.state != "equal"] == [name]
    assert [one.name for one in result.worst] == [name]
    before, after = weights_of(packed4)[name], weights_of(tmp_path / "out")[name]
    assert found(measured(result)[name]) == pytest.approx(expected(before, after), rel=1e-6)


def test_a_halved_scale_is_half_an_error_and_six_decibels(packed4: Path, tmp_path: Path) -> None:
    (sums,) = measured(compare(packed4, changed(packed4, tmp_path / "out", halve))).values()
    assert sums.relative == pytest.approx(0.5)
    assert sums.sqnr == pytest.approx(6.0206, abs=1e-4)


def test_a_group_of_zeros_is_counted_as_lost_where_it_was_none_before(
    packed4: Path, llama: Path, base: State, tmp_path: Path
) -> None:
    folder = changed(packed4, tmp_path / "out", clear_a_group)
    sums = measured(compare(llama, folder))[f"{UP}.weight"]
    assert (sums.groups, sums.zero, sums.lost) == (256 * 4, 1, 1)
    zeroed = base[f"{UP}.weight"].clone()
    zeroed[3, 32:64] = 0
    kept = altered(llama, tmp_path / "zeroed", **{f"{UP}.weight".replace(".", "__"): zeroed})
    sums = measured(compare(kept, folder))[f"{UP}.weight"]
    assert (sums.zero, sums.lost) == (1, 0)


def test_saturation_is_the_share_of_codes_at_the_ends(packed4: Path, llama: Path, tmp_path: Path) -> None:
    folder = changed(packed4, tmp_path / "out", saturate)
    words = load_file(folder / LONE)[f"{DOWN}.weight_packed"]
    codes = (words.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
    share = float(((codes == 0) | (codes == 15)).double().mean())
    assert share > 0.5
    assert measured(compare(llama, folder))[f"{DOWN}.weight"].saturation == pytest.approx(share)


def test_what_came_and_what_went(llama: Path, tmp_path: Path) -> None:
    folder = altered(llama, tmp_path / "out", lm_head__weight=None, extra=torch.ones(3))
    result = compare(llama, folder)
    assert [one.name for one in result.removed] == ["lm_head.weight"]
    assert [(one.name, one.form) for one in result.added] == [("extra", "F32 [3]")]
    assert result.is_different
    assert result.counts["equal"] == len(result.entries)


def test_swapped_experts_have_an_error_above_one(packed4: Path, llama: Path, tmp_path: Path) -> None:
    folder = changed(packed4, tmp_path / "out", lambda state: swap(state, UP, GATE))
    result = compare(llama, folder)
    assert {one.name for one in result.worst[:2]} == {f"{UP}.weight", f"{GATE}.weight"}
    assert all(1.3 < (one.sums.relative if one.sums else 0) < 1.5 for one in result.worst[:2])


def test_shapes_and_integers_that_differ_are_changed_and_say_why(llama: Path, tmp_path: Path) -> None:
    one = altered(llama, tmp_path / "a", ids=torch.arange(4), model__norm__weight=torch.ones(128))
    other = altered(llama, tmp_path / "b", ids=torch.arange(4).flip(0), model__norm__weight=torch.ones(64))
    why = {entry.name: entry.why for entry in compare(one, other).unmeasured}
    assert why == {
        "ids": "I64 values are compared by their bytes alone",
        "model.norm.weight": "shape [128] became [64]",
    }


def unreadable(state: State) -> None:
    state[f"{UP}.weight_scale"] = state[f"{UP}.weight_scale"][:, :3]


def test_a_packed_weight_that_cannot_be_unpacked_is_changed_and_says_why(
    packed4: Path, llama: Path, tmp_path: Path
) -> None:
    folder = changed(packed4, tmp_path / "out", unreadable)
    (one,) = compare(llama, folder).unmeasured
    assert (one.name, one.why) == (f"{UP}.weight", "its parts do not fit each other")
    same = compare(folder, shutil.copytree(folder, tmp_path / "copy"))
    assert not same.is_different
    assert {f"{UP}.weight_packed", f"{UP}.weight_scale", f"{UP}.weight_shape"} <= set(states(same))


def test_weight_shape_that_differs_counts_whatever_the_values_are(packed4: Path, tmp_path: Path) -> None:
    def turn(state: State) -> None:
        state[f"{UP}.weight_shape"] = state[f"{UP}.weight_shape"].flip(0)

    one = entry(compare(packed4, changed(packed4, tmp_path / "out", turn)), f"{UP}.weight")
    assert (one.state, one.why) == ("changed", "weight_shape differs")


def test_what_is_not_finite_is_worst_and_has_no_number(llama: Path, base: State, tmp_path: Path) -> None:
    broken = base["model.norm.weight"].clone()
    broken[0] = torch.nan
    far = base["lm_head.weight"] * 3
    result = compare(llama, altered(llama, tmp_path / "out", model__norm__weight=broken, lm_head__weight=far))
    assert [one.name for one in result.worst] == ["model.norm.weight", "lm_head.weight"]
    sums = measured(result)["model.norm.weight"]
    assert not sums.is_finite
    assert (sums.relative, sums.differing) == (inf, 1)
    copy = lone(tmp_path / "wide", {name: tensor.float() for name, tensor in weights_of(tmp_path / "out").items()})
    assert set(states(compare(tmp_path / "out", copy)).values()) == {"equal in value"}


def test_bits_are_taken_from_the_shapes_where_no_config_tells(llama: Path, packed4: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed4, tmp_path / "out")
    write_json(folder / "config.json", LLAMA)
    assert measured(compare(llama, folder)) == measured(compare(llama, packed4))
    groups = {"group_0": scheme(8, 32)}
    write_json(folder / "config.json", LLAMA | {"quantization_config": quantization(**groups)})
    assert measured(compare(llama, folder)) == measured(compare(llama, packed4))


@st.composite
def schemes(draw: st.DrawFn) -> tuple[int, int, int, int | None, bool]:
    """Rows, columns, bits, group, symmetric."""
    bits = draw(st.sampled_from([4, 8]))
    group = draw(st.sampled_from([8, 16, 32, 64, 96, None]))
    columns = draw(st.integers(1, 4)) * group if group else draw(st.integers(1, 140))
    return draw(st.integers(1, 40)), columns, bits, group, draw(st.booleans())


@settings(max_examples=40)
@given(
    how=schemes(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    seed=st.integers(0, 1 << 20),
    elements=st.sampled_from([1 << 20, 64]),
)
def test_any_shape_dtype_and_grid(
    how: tuple[int, int, int, int | None, bool], dtype: torch.dtype, seed: int, elements: int
) -> None:
    """One module packed and unpacked by the tests' own formulas, read in pieces of any size."""
    from reference import unpacked

    from compare import contents

    rows, columns, bits, group, symmetric = how
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    weight[torch.rand(weight.shape, generator=generator) < 0.1] = 0
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "elements_for", lambda memory, workers: elements)
        one = lone(Path(name, "a"), {"m.weight": weight})
        state = packed_state({"m.weight": weight}, bits, group, symmetric=symmetric)
        result = compare(one, lone(Path(name, "b"), state, config(bits, group, symmetric=symmetric)))
    parts = {part.removeprefix("m."): tensor for part, tensor in state.items()}
    after = unpacked(parts | {"weight_scale": parts["weight_scale"].float()}, bits, group)
    (got,) = result.entries
    if torch.equal(after, weight.float()):
        assert got.state == "equal in value"
        return
    assert got.sums is not None
    assert found(got.sums) == pytest.approx(expected(weight, after), rel=1e-6)
    groups = after.reshape(-1, group or columns)
    empty = (groups == 0).all(1)
    lost = empty & (weight.reshape(groups.shape) != 0).any(1)
    assert (got.sums.zero, got.sums.lost) == (int(empty.sum()), int(lost.sum()))
    assert got.sums.weights == got.sums.codes == rows * columns
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = ((parts["weight_packed"].unsqueeze(-1) >> shifts) & (2**bits - 1)).reshape(rows, -1)[:, :columns]
    assert got.sums.saturated == int(((codes == 0) | (codes == 2**bits - 1)).sum())
