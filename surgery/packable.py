"""What makes a matrix impossible to pack, judged by its header entry and the config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkpoint import CONFIG, Problem, TensorRef
from checkpoint.dtypes import FLOATS
from checkpoint.families import find_family
from surgery.scheme import GROUP_SIZES, Scheme


def matrix_problems(ref: TensorRef, scheme: Scheme) -> Iterator[Problem]:
    """Faults of `ref` as a weight to be packed by `scheme`; the caller names file and tensor."""
    size = scheme.group_size
    if len(ref.shape) != 2:
        yield Problem("not-a-matrix", f"shape {list(ref.shape)}", expected="a matrix [rows, columns]")
        return
    if ref.dtype not in FLOATS:
        remedy = "Start from the unquantized base"
        yield Problem("dtype-unsupported", f"dtype {ref.dtype}", expected="BF16, F16 or F32", remedy=remedy)
    if 0 in ref.shape:
        yield Problem("empty", f"shape {list(ref.shape)}", expected="at least one row and column")
    elif size and ref.shape[1] % size:
        fitting = [str(n) for n in GROUP_SIZES if ref.shape[1] % n == 0] + ["channel"]
        found = f"{ref.shape[1]} columns do not divide into groups of {size}"
        yield Problem("group-size", found, remedy=f"Group sizes that do: {', '.join(fitting)}")


def head_problems(ref: TensorRef, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Faults of `ref` as the head of a model of `config`."""
    family = find_family(config)
    text = family.text(config) if family else config
    for axis, key in enumerate(("vocab_size", "hidden_size")):
        if isinstance(text.get(key), int) and len(ref.shape) == 2 and ref.shape[axis] != text[key]:
            found = f"{ref.shape[axis]} {('rows', 'columns')[axis]}"
            yield Problem("head-shape", found, expected=f"{text[key]}, the {key}, which engines take for granted")


def tied_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """The head cannot be packed where it is the embedding."""
    family = find_family(config)
    tied = family.values(config).holds("tie_word_embeddings") if family else config.get("tie_word_embeddings")
    if tied:
        found = "tie_word_embeddings is true: the head is the embedding, which engines read as plain rows"
        yield Problem("tied", found, CONFIG, remedy="Leave the head as it is")
