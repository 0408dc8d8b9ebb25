"""Where each tensor that is written came from, tabulated: thousands of tensors share a few dozen origins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from checkpoint.draft import Computed, Draft, Source, Work
from checkpoint.header import TensorRef
from checkpoint.manifest.inputs import Inputs
from checkpoint.manifest.past import Entry, Past
from checkpoint.manifest.text import Table
from checkpoint.modules import split_name

FIELDS = ("how", "operation", "input", "file", "tensor", "part", "scheme", "maths", "was")
"""Of an origin, in this order; what is None or False is left out."""

Key = tuple[Any, ...]


class _Home(NamedTuple):
    """A stored file: its input, its name there, its tensors; what the input's manifest tells of it, if it is the one
    that is told of, and where that had it from."""

    number: int
    file: str
    tensors: Mapping[str, TensorRef]
    rows: Mapping[str, Any]
    was: int | None


class Origins:
    """The table that grows. All numbers of the past stay; those of this run follow."""

    def __init__(self, draft: Draft, inputs: Inputs, past: Past) -> None:
        self.rows: list[Entry] = list(past.origins)
        self.expected: dict[str, str] = {}
        """By name of a tensor that is taken as it is: the hash that it has by its input's manifest."""
        self._inputs = inputs
        self._past = past
        self._states = [draft.origin.tensors, *(step.tensors for step in draft.steps)]
        self._calibrated = {name: number for number, step in enumerate(draft.steps) for name in step.calibrated}
        self._numbers: dict[Key, int] = {}
        self._homes: dict[int, _Home] = {}
        self._works: dict[int, tuple[str, Key]] = {}

    def of_tensor(self, name: str, source: Source) -> int:
        """The number of the origin of `name`."""
        if isinstance(source, Computed):
            return self._of_computed(name, source)
        home = self._homes.get(id(source.path)) or self._home(source)
        stored = home.tensors.get(source.name)
        part = stored is not None and stored.nbytes != source.nbytes
        how, operation = "kept", self._operation(name, source)
        if operation is None and name in self._calibrated and home.number == 0:
            how, operation = "calibrated", self._calibrated[name]
        was = None
        if not part and home.rows and (row := home.rows.get(source.name)):
            was = self._past.first_origin[home.number] + row[1]
            if row[0]:
                self.expected[name] = row[0]
        elif not part:
            was = home.was
        other = source.name if source.name != name else None
        return self._number((how, operation, home.number, home.file, other, part, None, None, was))

    def of_shard(self, file: str) -> int:
        """The number of the origin of a file of the source that moves whole."""
        was = self._inputs.all[0].origin_of(file)
        moved = None if was is None else was + self._past.first_origin[0]
        return self._number(("kept", None, 0, file, None, False, None, None, moved))

    def of_calibrated(self, names: Iterable[str], file: str) -> Table:
        """Rows for those of `names`, tensors of an untouched file of the source, that were calibrated before."""
        found = ((name, self._calibrated[name]) for name in names if name in self._calibrated)
        keys = ((name, ("calibrated", step, 0, file, None, False, None, None, None)) for name, step in found)
        return Table((name, [None, self._number(key)]) for name, key in keys)

    def without_past(self, number: int) -> int:
        """The origin `number`, but of a tensor that the input's manifest does not know: its hash is another."""
        row = {key: value for key, value in self.rows[number].items() if key != "was"}
        if row in self.rows:
            return self.rows.index(row)
        self.rows.append(row)
        return len(self.rows) - 1

    def _of_computed(self, name: str, source: Computed) -> int:
        """The tensor read is named in the origin, unless it is the weight of the module that `name` belongs to."""
        work = source.work
        known = self._works.get(id(work))
        if known is None:
            known = self._works[id(work)] = self._described(name, source, work)
        module, key = known
        return self._number((*key[:4], None, *key[5:]) if module and name.startswith(module) else key)

    def _described(self, name: str, source: Computed, work: Work) -> tuple[str, Key]:
        """The module whose weight is read, dot included ("" where no weight is), and the key of what comes of it."""
        ref = work.source
        home = self._homes.get(id(ref.path)) or self._home(ref)
        stored = home.tensors.get(ref.name)
        part = stored is not None and stored.nbytes != ref.nbytes
        row = home.rows.get(ref.name)
        was = self._past.first_origin[home.number] + row[1] if row else home.was
        module, suffix = split_name(ref.name)
        terms: Mapping[str, str] = getattr(work, "terms", {})
        operation = self._operation(name, source)
        key = ("recomputed", operation, home.number, home.file, ref.name, part, terms.get("scheme"), terms.get("maths"))
        return f"{module}." if suffix == "weight" else "", (*key, was)

    def _home(self, ref: TensorRef) -> _Home:
        number, file = self._inputs.of_file[ref.path]
        one = self._inputs.all[number]
        was = one.origin_of(file)
        moved = None if was is None else was + self._past.first_origin[number]
        home = _Home(number, file, one.tensors.get(file, {}), one.rows_of(file), moved)
        self._homes[id(ref.path)] = home
        return home

    def _operation(self, name: str, source: Source) -> int | None:
        """The step from which on the draft holds this under `name`; None where the origin held it already."""
        states = self._states
        if states[0].get(name) is source and states[-1] is states[0]:
            return None
        last = states[-1].get(name)
        if last is not source and not (isinstance(last, Computed) and isinstance(source, Computed)):
            return None
        state = len(states) - 1
        while state and states[state - 1].get(name) is last:
            state -= 1
        return state - 1 if state else None

    def _number(self, key: Key) -> int:
        """The number of the origin that `key` tells, in numbers of this run alone but for `was`."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        said = dict(zip(FIELDS, key, strict=True))
        said["input"] += len(self._past.inputs)
        if said["operation"] is not None:
            said["operation"] += len(self._past.operations)
        self._numbers[key] = len(self.rows)
        self.rows.append({field: value for field, value in said.items() if value is not None and value is not False})
        return self._numbers[key]
