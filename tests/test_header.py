"""The header of a safetensors file. The oracle is the `safetensors` package itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from building import write_raw
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import save, save_file

from checkpoint import CkptError, Header, UnreadableCheckpoint, encode_header, parse_header, read_header

F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
NEXT = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip
"""Every dtype of safetensors 0.8."""

TORCH_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
    torch.uint32, torch.float32, torch.float64, torch.int64, torch.uint64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
)  # fmt: skip


def loaded(raw: bytes) -> Any:
    return deserialize(raw)  # type: ignore[no-untyped-call]


def described(raw: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What safetensors reads in `raw`."""
    return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in loaded(raw)}


def seen(header: Header, raw: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What we read, with the bytes at the place we say."""
    return {n: (r.dtype, r.shape, raw[r.offset : r.offset + r.nbytes]) for n, r in header.tensors.items()}


def codes(path: Path) -> list[str]:
    with pytest.raises(UnreadableCheckpoint) as caught:
        read_header(path)
    return [problem.code for problem in caught.value.problems]


# What is sound


def test_every_torch_dtype_an_empty_a_scalar_and_unicode_names_are_read_as_written(tmp_path: Path) -> None:
    tensors = {f"{dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in TORCH_DTYPES}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 7), "müde.模型.🤗\n\x1b": torch.ones(3)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "ключ": '"\\ü'})
    header, raw = read_header(path), path.read_bytes()
    assert seen(header, raw) == described(raw)
    with safe_open(path, "pt") as file:
        assert header.metadata == file.metadata()
    assert [ref.offset for ref in header.tensors.values()] == sorted(ref.offset for ref in header.tensors.values())


@pytest.mark.parametrize("dtype, bits", BITS.items())
def test_every_dtype_of_safetensors_has_its_width(tmp_path: Path, dtype: str, bits: int) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"t": {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, bits]}}, bytes(range(bits)))
    assert seen(read_header(path), path.read_bytes()) == described(path.read_bytes())


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"a": "ü\n"}])
def test_metadata_is_read_as_it_stands(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"__metadata__": metadata, "t": F32}, bytes(4))
    assert read_header(path).metadata == metadata


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    write_raw(tmp_path / "x.safetensors", "{}", b"")
    assert read_header(tmp_path / "x.safetensors").tensors == {}


def test_blanks_behind_the_header_are_read(tmp_path: Path) -> None:
    write_raw(tmp_path / "x.safetensors", json.dumps({"t": F32}) + " \n\t ", bytes(4))
    assert list(read_header(tmp_path / "x.safetensors").tensors) == ["t"]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.dictionaries(names, st.tuples(st.sampled_from(TORCH_DTYPES), shapes), max_size=6))
@settings(max_examples=60, deadline=None)
def test_whatever_safetensors_writes_is_read_the_same(entries: dict[str, Any]) -> None:
    raw = save({name: torch.ones(shape).to(dtype) for name, (dtype, shape) in entries.items()}, {"format": "pt"})
    length = int.from_bytes(raw[:8], "little")
    assert seen(parse_header(raw[8 : 8 + length], Path("x"), len(raw)), raw) == described(raw)


@given(st.dictionaries(names, st.tuples(st.sampled_from(sorted(BITS)), shapes), max_size=6), st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_whatever_we_write_is_read_the_same_by_safetensors(entries: dict[str, Any], note: str) -> None:
    def size(dtype: str, shape: tuple[int, ...]) -> int:
        return torch.Size(shape).numel() * BITS[dtype] // 8

    whole = {n: (d, s) for n, (d, s) in entries.items() if torch.Size(s).numel() * BITS[d] % 8 == 0}
    metadata = {"note": note.encode("utf-8", "replace").decode()}
    encoded = encode_header(((n, d, s, size(d, s)) for n, (d, s) in whole.items()), metadata)
    data = bytes(i % 251 for i in range(sum(size(d, s) for d, s in whole.values())))
    read = described(encoded + data)
    assert {name: (dtype, shape) for name, (dtype, shape, _) in read.items()} == whole
    assert b"".join(read[name][2] for name in whole) == data
    assert len(encoded) % 8 == 0


@given(st.permutations(range(6)), st.lists(shapes, min_size=6, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_header_reads_alike_in_whatever_order_it_lists_its_tensors(order: list[int], sizes: list[Any]) -> None:
    entries, position = [], 0
    for number, shape in enumerate(sizes):
        end = position + 4 * torch.Size(shape).numel()
        entries.append((f"t{number}", {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}))
        position = end
    straight, shuffled = dict(entries), {entries[number][0]: entries[number][1] for number in order}
    # Blanks, so that both headers are equally long and the tensors lie at the same places.
    encoded = [json.dumps(header).encode().ljust(1000) for header in (straight, shuffled)]
    one, other = (parse_header(raw, Path("x"), 8 + len(raw) + position) for raw in encoded)
    assert one.tensors == other.tensors
    assert [ref.offset for ref in other.tensors.values()] == sorted(ref.offset for ref in other.tensors.values())


# What is refused. `agreed` says whether safetensors refuses it too; where not, it would read one of two meanings.

ONE, OTHER = json.dumps(F32), json.dumps(F32 | {"dtype": "I32"})
TWICE = f'{{"t": {ONE}, "t": {OTHER}}}'
SPELT_TWICE = TWICE.replace('"t": {"dtype": "I32"', '"\\u0074": {"dtype": "I32"')
FIELD_TWICE = '{"t": {"dtype": "F32", "dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}'


def entry(**changes: Any) -> dict[str, Any]:
    return {"t": F32 | changes}


@pytest.mark.parametrize(
    "header, nbytes, expected, agreed",
    [
        (TWICE, 4, ["duplicate-key"], False),
        (SPELT_TWICE, 4, ["duplicate-key"], False),
        (TWICE.replace(",", " ,").replace(":", " :"), 4, ["duplicate-key"], False),
        (FIELD_TWICE, 4, ["duplicate-key"], True),
        ('{"__metadata__": {"a": "1", "a": "2"}}', 0, ["duplicate-key"], False),
        ({"t": F32, "u": F32}, 4, ["overlap"], True),
        ({"t": F32, "u": entry(data_offsets=[2, 6])["t"]}, 6, ["overlap"], True),
        ({"t": entry(shape=[3], data_offsets=[0, 12])["t"], "u": NEXT}, 12, ["overlap"], True),
        ({"t": F32, "u": entry(data_offsets=[5, 9])["t"]}, 9, ["hole"], True),
        (entry(data_offsets=[4, 8]), 8, ["hole"], True),
        ({"t": F32, "e": {"dtype": "F32", "shape": [0], "data_offsets": [2, 2]}}, 4, ["overlap"], True),
        (entry(), 5, ["trailing-bytes"], True),
        ("{}", 1, ["trailing-bytes"], True),
        (entry(), 3, ["truncated"], True),
        (entry(shape=[2]), 4, ["size-mismatch"], True),
        (entry(dtype="BF16"), 4, ["size-mismatch"], True),
        (entry(dtype="F4", shape=[7]), 4, ["size-mismatch"], True),
        (entry(shape=[2**32, 2**32]), 4, ["size-mismatch"], True),
        (entry(shape=[2**63, 2, 0], data_offsets=[0, 0]), 0, ["size-mismatch"], True),
        (entry(shape=[2**62], dtype="I64", data_offsets=[0, 2**65]), 0, ["size-mismatch", "truncated"], True),
        (entry(shape=[2**64], data_offsets=[0, 0]), 0, ["entry-invalid"], True),
        (entry(data_offsets=[4, 0]), 4, ["entry-invalid"], True),
        (entry(shape=[-1], data_offsets=[0, 0]), 0, ["entry-invalid"], True),
        (entry(data_offsets=[-4, 0]), 0, ["entry-invalid"], True),
        (entry(shape=[True]), 4, ["entry-invalid"], True),
        (entry(shape=[1.0]), 4, ["entry-invalid"], True),
        (entry(shape=["1"]), 4, ["entry-invalid"], True),
        (entry(shape=[[1]]), 4, ["entry-invalid"], True),
        (entry(shape=""), 4, ["entry-invalid"], True),
        (entry(shape={}), 4, ["entry-invalid"], True),
        (entry(shape=None), 4, ["entry-invalid"], True),
        (entry(data_offsets=[0, True], dtype="U8"), 1, ["entry-invalid"], True),
        (entry(data_offsets=[0, 4.0]), 4, ["entry-invalid"], True),
        (entry(data_offsets=[0]), 4, ["entry-invalid"], True),
        (entry(data_offsets=[0, 4, 4]), 4, ["entry-invalid"], True),
        (entry(data_offsets="04"), 4, ["entry-invalid"], True),
        (entry(dtype="F99"), 4, ["dtype-unknown"], True),
        (entry(dtype="f32"), 4, ["dtype-unknown"], True),
        (entry(dtype=["F32"]), 4, ["entry-invalid"], True),
        (entry(dtype=None), 4, ["entry-invalid"], True),
        (entry(extra=1), 4, ["entry-invalid"], False),
        ({"t": {"dtype": "F32", "shape": [1]}}, 4, ["entry-invalid"], True),
        ({"t": ["F32", [1], [0, 4]]}, 4, ["entry-invalid"], False),
        ({"t": None}, 4, ["entry-invalid"], True),
        ({"": F32}, 4, ["entry-invalid"], False),
        ('{"t": {"dtype": "F32", "shape": [-0], "data_offsets": [0, 0]}}', 0, ["header-invalid"], True),
        ({"__metadata__": {"a": 1}, "t": F32}, 4, ["header-invalid"], True),
        ({"__metadata__": ["a"], "t": F32}, 4, ["header-invalid"], True),
        ({"__metadata__": "a", "t": F32}, 4, ["header-invalid"], True),
        (" " + json.dumps({"t": F32}), 4, ["header-invalid"], False),
        ("[]", 0, ["header-invalid"], False),
        ('{"t": NaN}', 0, ["header-invalid"], True),
        ('{"t": 1e999}', 0, ["header-invalid"], True),
        ('{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', 4, ["header-invalid"], True),
        ('{"t": ' + "[" * 100_000 + "]" * 100_000 + "}", 0, ["header-invalid"], True),
        ('{"t": ' + "9" * 5000 + "}", 0, ["header-invalid"], True),
        (json.dumps({"t": F32}) + "\x00", 4, ["header-invalid"], True),
        (json.dumps({"t": F32})[:-1], 4, ["header-invalid"], True),
        ("", 0, ["header-invalid"], True),
    ],
)  # fmt: skip
def test_a_header_that_is_wrong_or_has_two_meanings_is_refused(
    tmp_path: Path, header: Any, nbytes: int, expected: list[str], agreed: bool
) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, header, bytes(nbytes))
    assert codes(path) == expected
    if agreed:
        with pytest.raises(SafetensorError):
            loaded(path.read_bytes())


@pytest.mark.parametrize(
    "field, value",
    [("shape", [True]), ("shape", [1.0]), ("shape", {}), ("data_offsets", [4.0, 8]), ("data_offsets", [4, 8.0]),
     ("data_offsets", {"4": 8, "8": 4})],
)  # fmt: skip
def test_a_tensor_that_equals_its_neighbours_but_for_a_type_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"t": F32, "u": NEXT | {field: value}, "v": F32 | {"data_offsets": [8, 12]}}, bytes(12))
    assert codes(path)[0] == "entry-invalid"
    with pytest.raises(SafetensorError):
        loaded(path.read_bytes())


def test_a_header_in_invalid_utf8_is_refused(tmp_path: Path) -> None:
    raw = json.dumps({"t": F32}).encode().replace(b'"t"', b'"\xff"')
    (tmp_path / "x.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4))
    assert codes(tmp_path / "x.safetensors") == ["header-invalid"]


@pytest.mark.parametrize("raw", [b"", b"\x02\0\0", b"\x02\0\0\0\0\0\0\0", b"\x40\0\0\0\0\0\0\0{}"])
def test_a_file_that_ends_inside_its_header_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    assert codes(tmp_path / "x.safetensors") == ["header-truncated"]


def test_a_header_of_the_limit_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, "{}" + " " * (100_000_000 - 2), b"")
    assert read_header(path).nbytes == 100_000_008
    assert loaded(path.read_bytes()) == []
    with path.open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_009)
    assert codes(path) == ["header-too-large"]


def test_a_git_lfs_pointer_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4932349888\n")
    assert codes(path) == ["lfs-pointer"]


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    assert codes(tmp_path / "absent.safetensors") == ["file-unreadable"]
    assert codes(tmp_path) == ["file-unreadable"]


def test_all_faults_of_a_file_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = {
        "__metadata__": {"format": 1},
        "unknown": F32 | {"dtype": "Q4"},
        "short": NEXT | {"shape": [2]},
        "inside": F32 | {"data_offsets": [6, 10]},
        "behind": F32 | {"data_offsets": [20, 24]},
    }
    write_raw(path, header, bytes(30))
    expected = ["header-invalid", "dtype-unknown", "size-mismatch", "overlap", "hole", "trailing-bytes"]
    assert codes(path) == expected


def test_a_malformed_entry_is_not_taken_for_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"t": {"dtype": "F32"}, "u": NEXT}, bytes(8))
    assert codes(path) == ["entry-invalid"]


def test_a_problem_names_file_tensor_and_numbers_and_cannot_drive_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"a\n\x1b[31m": F32 | {"shape": [2]}}, bytes(4))
    with pytest.raises(UnreadableCheckpoint) as caught:
        read_header(path)
    assert str(caught.value) == "x.safetensors: a\\n\\x1b[31m: 4 bytes for F32 [2]; expected 8"


# Whatever the bytes are

SOUND = json.dumps({"__metadata__": {"format": "pt"}, "a-0": F32, "b": NEXT | {"dtype": "I32"}}).encode()
PIECES = (b"0", b"-0", b"1", b"4", b"9", b"1e1", b"true", b"null", b'"', b",", b":", b"{", b"}", b"[", b"]", b"\\u0061",
          b"a-0", b"b", b"dtype", b"F32", b"F4", b"C64", b"shape", b" ", b"\n", b"\xff", b"\\ud800",
          b"18446744073709551616", b'"x":1,', b'"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},')  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound header with up to four pieces cut out or put in."""
    raw = SOUND
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(raw)))
        end = min(len(raw), begin + draw(st.integers(0, 6)))
        raw = raw[:begin] + draw(st.sampled_from((b"", *PIECES))) + raw[end:]
    return raw


@given(mutated(), st.integers(6, 10))
@settings(max_examples=1500, deadline=None)
def test_a_mutated_header_is_read_as_safetensors_reads_it_or_refused(header: bytes, nbytes: int) -> None:
    raw = len(header).to_bytes(8, "little") + header + bytes(range(nbytes))
    try:
        parsed = parse_header(header, Path("x"), len(raw))
    except CkptError:
        return
    assert seen(parsed, raw) == described(raw)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_refused_and_nothing_worse(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(raw)
    try:
        header = read_header(path)
    except CkptError:
        return
    assert seen(header, raw) == described(raw)
