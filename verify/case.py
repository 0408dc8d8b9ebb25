"""What the rules look at: the checkpoint, what it should descend from, and for whom it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from checkpoint import (
    Checkpoint,
    Files,
    Module,
    UnreadableCheckpoint,
    default_workers,
    group_modules,
)
from checkpoint.families import Family, Spec, SpecError, find_family
from checkpoint.quantization import quantization_config
from verify.registry import Level

if TYPE_CHECKING:
    from checkpoint import TensorRef
    from verify.dense import Dense
    from verify.descent import Wanted
    from verify.engines import Resolved, Slot
    from verify.groups import GroupTable
    from verify.inventory import Inventory
    from verify.judging import Judgement
    from verify.measuring import Measurement
    from verify.mismatches import Mismatches
    from verify.packed import Packed
    from verify.recompute import Job

ENGINES = ("vllm", "sglang", "transformers")

Progress = Callable[[str, int, int], None]
"""Called with what is being read, units done, units in all."""


def silent(what: str, done: int, total: int) -> None:
    """The progress of a run that nobody watches."""


@dataclass
class Notes:
    """What rules learned that is no fault: facts worth a line, numbers, and what could not be judged, and why."""

    facts: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def fact(self, text: str) -> None:
        self.facts.append(text)

    def skip(self, what: str, why: str) -> None:
        self.skipped[what] = why

    def measure(self, measurement: Measurement) -> None:
        """Keep numbers for a report; rules call it from several threads, in any order."""
        self.measurements.append(measurement)


@dataclass(frozen=True)
class Case:
    """One checkpoint under judgement. Derived views are computed once and shared by all rules.

    `described` and `expected` are what should be stored, where it is not all that config.json calls for or that the
    base holds (`excerpt`); `running` are the
    ids of the rules that judge the case, where they are known.
    """

    checkpoint: Checkpoint
    base: Checkpoint | None = None
    engines: tuple[str, ...] = ENGINES
    tp: int | None = None
    level: Level = "headers"
    schema: str | Mapping[str, Any] | None = None
    measure: bool = False
    workers: int = field(default_factory=default_workers, compare=False)
    running: frozenset[str] = frozenset()
    described: Spec | None = field(default=None, compare=False)
    expected: Mapping[str, Wanted] | None = field(default=None, compare=False)
    files: Files = field(default_factory=Files, compare=False)
    notes: Notes = field(default_factory=Notes, compare=False)
    progress: Progress = field(default=silent, compare=False)

    @cached_property
    def modules(self) -> dict[str, Module]:
        return group_modules(self.checkpoint.tensors)

    @cached_property
    def ignored(self) -> frozenset[str]:
        """The entries of the ignore list, as they are spelled."""
        from verify.engines import ignore_entries

        return frozenset(ignore_entries(self.quantization or {}))

    @cached_property
    def named(self) -> dict[str, None]:
        """Every tensor name that the folder knows of, in order: stored, only indexed, or in a shard outside the index.

        What is named but cannot be loaded is the matter of the structure rules; elsewhere it does not count as missing.
        """
        checkpoint = self.checkpoint
        names = dict.fromkeys(checkpoint.tensors)
        weight_map = checkpoint.index.value.get("weight_map") if checkpoint.index else None
        names |= dict.fromkeys(weight_map if isinstance(weight_map, dict) else ())
        for stray in checkpoint.strays:
            try:
                names |= dict.fromkeys(checkpoint.stray_header(stray).tensors)
            except UnreadableCheckpoint:
                continue
        return names

    @cached_property
    def named_modules(self) -> dict[str, Module]:
        """The modules of `named`."""
        return self.modules if len(self.named) == len(self.checkpoint.tensors) else group_modules(self.named)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    @cached_property
    def quantization(self) -> Mapping[str, Any] | None:
        """The quantization_config that engines would use: of config.json, else of its text_config; None if dense."""
        return quantization_config(self.config)

    @cached_property
    def groups(self) -> GroupTable:
        """Which module belongs to which config group."""
        from verify.groups import group_table

        return group_table(self.quantization, self.family)

    @cached_property
    def inventory(self) -> Inventory | None:
        """What should be stored, what is not and what is besides; None where neither base nor family tells."""
        from verify.inventory import take_inventory

        return take_inventory(self)

    @cached_property
    def wanted(self) -> Mapping[str, Wanted] | None:
        """What should be stored, by the names it has while dense; None where neither base nor family tells."""
        from verify.inventory import wanted_tensors

        return wanted_tensors(self) if self.expected is None else self.expected

    @cached_property
    def weights(self) -> Mapping[str, Wanted]:
        """Of what should be stored, the weights and bare parameters, by module."""
        from verify.inventory import weights

        return weights(self.wanted or {})

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The stored modules that some engine might build quantized."""
        from verify.engines import slots

        return slots(self)

    @cached_property
    def resolved(self) -> tuple[Resolved, ...]:
        """What each engine builds for each module; UnknownEngine where there is no such engine."""
        from verify.engines import load_engine, resolve

        return tuple(resolve(load_engine(label), self, self.slots) for label in self.engines)

    @cached_property
    def mismatches(self) -> Mismatches:
        """The modules that an engine builds otherwise than they are stored, each left to one rule."""
        from verify.mismatches import find_mismatches

        return find_mismatches(self)

    @cached_property
    def packed(self) -> tuple[Packed, ...]:
        """Every packed module with its parts, its scheme and its size."""
        from verify.packed import packed_modules

        return tuple(packed_modules(self))

    @cached_property
    def dense(self) -> dict[str, TensorRef]:
        """The tensors that are no part of a packed module, by name."""
        from verify.dense import dense_tensors

        return dense_tensors(self)

    @cached_property
    def pairs(self) -> dict[str, TensorRef]:
        """Where in the base the dense tensors are that can be compared with it, by name."""
        from verify.dense import paired

        return paired(self)

    @cached_property
    def dense_found(self) -> dict[str, Dense]:
        """What is wrong with dense tensors, by name."""
        from verify.dense import look_at_dense

        return look_at_dense(self)

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """The packed modules that can be computed again from the base, by name."""
        from verify.judging import jobs_of

        return jobs_of(self)

    @cached_property
    def judged(self) -> tuple[Judgement, ...]:
        """What came of computing packed modules again from the base."""
        from verify.judging import judge_modules

        return tuple(judge_modules(self))

    @cached_property
    def family(self) -> Family | None:
        return find_family(self.config)

    @cached_property
    def spec(self) -> Spec | None:
        """What the family says the config implies; None for an unknown family or an incomplete config."""
        if self.described is not None or self.family is None:
            return self.described
        try:
            return self.family.spec(self.config)
        except SpecError:
            return None
