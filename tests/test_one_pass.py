"""Operations composed into one pass give the files that they give one after another."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from building import INDEX, edit_json, write_shard
from drafting import contents, entries, sample, with_work, write
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import Draft, TensorRef, open_checkpoint

GRAFT = "model-graft.safetensors"
NAMES = list(entries())


def _drop(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    return draft.without([name])


def _rename(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    return draft.replaced({name: {f"{name}.renamed": draft.tensors[name]}} if name in draft.tensors else {})


def _compute(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    source = draft.tensors.get(name)
    return with_work(draft, name) if isinstance(source, TensorRef) else draft


def _graft(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    new = f"base.{name}"
    return draft if new in draft.tensors else draft.added({new: other[new]}, GRAFT)


def _replace(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    return draft.replaced({name: {name: other[f"base.{name}"]}} if name in draft.tensors else {})


def _configure(draft: Draft, name: str, other: dict[str, Any]) -> Draft:
    return draft.with_config({**draft.config.value, name: [name]})


operations = st.lists(
    st.tuples(st.sampled_from([_drop, _rename, _compute, _graft, _replace, _configure]), st.sampled_from(NAMES)),
    max_size=4,
)


@pytest.mark.parametrize("kind", ["sharded", "reversed", "lone"])
@given(first=operations, second=operations)
@settings(max_examples=30, deadline=None)
def test_two_drafts_in_one_pass_give_the_files_of_two_passes(
    tmp_path_factory: pytest.TempPathFactory, kind: str, first: Any, second: Any
) -> None:
    room = tmp_path_factory.mktemp("compose")
    (room / "base").mkdir()
    write_shard(room / "base" / "model.safetensors", entries("base."))
    other = dict(open_checkpoint(room / "base").tensors)
    sample(room / "source")
    if kind == "reversed":
        edit_json(room / "source" / INDEX, lambda i: i.update(weight_map=dict(reversed(i["weight_map"].items()))))
    if kind == "lone":
        for path in room.glob("source/model*"):
            path.unlink()
        write_shard(room / "source" / "model.safetensors", entries())

    def after(draft: Draft, steps: Any) -> Draft:
        for change, name in steps:
            draft = change(draft, name, other)
        return draft

    start = Draft.of(open_checkpoint(room / "source"))
    write(after(after(start, first), second), room / "at-once")
    write(after(start, first), room / "half")
    write(after(Draft.of(open_checkpoint(room / "half")), second), room / "whole")
    assert contents(room / "at-once") == contents(room / "whole")
    shutil.rmtree(room)
