"""The layout document: what is stored where in a checkpoint, folded to what a person can read and a schema can judge.

Its form is `schemas/layout.schema.json`. It is made from headers and config.json; only hashes of side files read more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.families import Family, Spec, SpecError, find_family
from checkpoint.folder import Checkpoint
from checkpoint.folding import fold
from checkpoint.header import Header, TensorRef
from checkpoint.matching import Matcher
from checkpoint.modules import Module, group_modules
from checkpoint.patterns import PREFIX, compiled
from checkpoint.quantization import quantization_config
from checkpoint.side_files import SideFiles, sha256_of, size_of

TRIPLE = ("weight_packed", "weight_scale", "weight_shape")
MOST_BITS = 16
WORD = 32

State = tuple[tuple[str, Any], ...]


def layout(checkpoint: Checkpoint, *, hashes: bool = False) -> dict[str, Any]:
    """The layout document of `checkpoint`; `hashes` reads every side file and adds its sha256.

    Bits and group sizes are those of the stored shapes where these decide, else those of the config group.
    Raises UnreadableCheckpoint if a side file cannot be read.
    """
    config = checkpoint.config
    family, spec = _family_and_spec(config)
    modules = group_modules(checkpoint.tensors)
    quantization = quantization_config(config)
    return {
        "family": family.name if family else None,
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures") or [],
        "tied": spec.tied if spec else bool(config.get("tie_word_embeddings")),
        "totals": _totals(checkpoint, modules),
        "modules": _entries(checkpoint, modules, _Origin(family, _columns(spec, modules), _claims(quantization))),
        "quantization": _quantization(quantization) if quantization is not None else None,
        "shards": {file: _shard(header) for file, header in checkpoint.shards.items()},
        "side_files": {name: _side_file(checkpoint.side_files, name, hashes) for name in checkpoint.side_files},
    }


def _family_and_spec(config: Mapping[str, Any]) -> tuple[Family | None, Spec | None]:
    """The family, and its spec unless the config lacks what it needs; the layout does without either."""
    family = find_family(config)
    try:
        return family, family.spec(config) if family else None
    except SpecError:
        return family, None


def _totals(checkpoint: Checkpoint, modules: Mapping[str, Module]) -> dict[str, int]:
    return {
        "bytes": sum(ref.nbytes for ref in checkpoint.tensors.values()),
        "tensors": len(checkpoint.tensors),
        "modules": len(modules),
        "packed_modules": sum("weight_packed" in module.tensors for module in modules.values()),
        "shards": len(checkpoint.shards),
    }


def _shard(header: Header) -> dict[str, int]:
    data = sum(ref.nbytes for ref in header.tensors.values())
    return {"bytes": header.nbytes + data, "tensors": len(header.tensors)}


def _side_file(files: SideFiles, name: str, hashes: bool) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = {"bytes": size_of(files, name)}
        if hashes:
            entry["sha256"] = sha256_of(files, name)
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), name)) from error
    return entry


def _quantization(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """The config's own statement, with lists of plain module names folded."""
    groups = quantization.get("config_groups")
    return {
        "quant_method": quantization.get("quant_method"),
        "format": quantization.get("format"),
        "config_groups": {name: _group(group) for name, group in groups.items()} if isinstance(groups, dict) else {},
        "ignore": fold_entries(quantization.get("ignore")),
    }


def _group(group: Any) -> dict[str, Any]:
    stated = dict(group) if isinstance(group, Mapping) else {"targets": group}
    return stated | {"targets": fold_entries(stated.get("targets"))}


def fold_entries(entries: Any) -> list[str]:
    """Targets or ignore entries in order, plain names folded, regular expressions as they are."""
    names = [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    patterns = dict.fromkeys(entry for entry in names if entry.startswith(PREFIX))
    plain = dict.fromkeys(entry for entry in names if not entry.startswith(PREFIX))
    return [*patterns, *(folded.pattern for folded in fold((name, None) for name in plain))]


@dataclass(frozen=True)
class _Claim:
    """What a config group says of the weights it is for."""

    bits: int | None
    group_size: int | None
    strategy: str | None


@dataclass(frozen=True)
class _Claims:
    """Config groups by what they target: whole names, regular expressions, and the class Linear."""

    names: Mapping[str, _Claim]
    patterns: tuple[tuple[Matcher, _Claim], ...]

    def of(self, module: str) -> _Claim | None:
        if module in self.names:
            return self.names[module]
        found = (claim for pattern, claim in self.patterns if pattern.match(module))
        # A packed module that nothing else targets is a Linear: no other class is packed.
        return next(found, self.names.get("Linear"))


@dataclass(frozen=True)
class _Origin:
    """What is known of modules beside their stored shapes."""

    family: Family | None
    columns: Mapping[str, int]
    claims: _Claims


def _columns(spec: Spec | None, modules: Mapping[str, Module]) -> dict[str, int]:
    """Input columns by module, from the config alone: what a packed width is to be read against."""
    if spec is None:
        return {}
    expected = spec.tensors(spec.choose_layouts(modules))
    return {name.removesuffix(".weight"): tensor.shape[-1] for name, tensor in expected.items()}


def _claims(quantization: Mapping[str, Any] | None) -> _Claims:
    groups = (quantization or {}).get("config_groups")
    names: dict[str, _Claim] = {}
    patterns: list[tuple[Matcher, _Claim]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or not isinstance(group.get("targets"), list):
            continue
        claim = _Claim(_integer(weights, "num_bits"), _integer(weights, "group_size"), weights.get("strategy"))
        for target in group["targets"]:
            _add_target(str(target), claim, names, patterns)
    return _Claims(names, tuple(patterns))


def _add_target(target: str, claim: _Claim, names: dict[str, _Claim], patterns: list[tuple[Matcher, _Claim]]) -> None:
    try:
        pattern = compiled(target)
    except re.error:
        return
    if pattern is None:
        names.setdefault(target, claim)
    else:
        patterns.append((pattern, claim))


def _integer(weights: Mapping[str, Any], key: str) -> int | None:
    value = weights.get(key)
    return value if type(value) is int and value > 0 else None


def _entries(checkpoint: Checkpoint, modules: Mapping[str, Module], origin: _Origin) -> dict[str, Any]:
    entries = {}
    for folded in fold((name, _state(module, checkpoint.tensors, origin)) for name, module in modules.items()):
        fields = {key: list(value) if isinstance(value, tuple) else value for key, value in folded.state}
        nbytes = fields.pop("nbytes") * folded.count
        entries[folded.pattern] = {**fields, "count": folded.count, "bytes": nbytes}
    return entries


def _state(module: Module, tensors: Mapping[str, TensorRef], origin: _Origin) -> State:
    """What is stored for one module, as hashable (key, value) pairs in the order of the document."""
    parts = {suffix: tensors[name] for suffix, name in module.tensors.items()}
    weight = parts.get("weight") or parts.get("")
    packed = parts.get("weight_packed")
    state = "mixed" if packed and weight else "packed" if packed else "dense" if weight else "orphan"
    described: dict[str, Any] = {"state": state, "kind": origin.family.kind(module.name) if origin.family else None}
    if weight:
        described |= {"dtype": weight.dtype, "shape": weight.shape}
    if packed:
        described |= _scheme(module.name, parts, origin)
    if "bias" in parts:
        described["bias"] = parts["bias"].dtype
    described |= _irregular(state, parts)
    described["nbytes"] = sum(ref.nbytes for ref in parts.values())
    return tuple(described.items())


def _irregular(state: str, parts: Mapping[str, TensorRef]) -> dict[str, tuple[str, ...]]:
    """Tensors that a module in this state should have and does not, or has and should not."""
    usual = {"dense": (), "packed": (*TRIPLE, "weight_zero_point")}.get(state, TRIPLE)
    missing = tuple(suffix for suffix in TRIPLE if suffix not in parts) if state != "dense" else ()
    beside = tuple(suffix for suffix in parts if suffix not in ("", "weight", "bias", *usual))
    return {key: names for key, names in (("missing", missing), ("beside", beside)) if names}


def _scheme(name: str, parts: Mapping[str, TensorRef], origin: _Origin) -> dict[str, Any]:
    """Bits, strategy and shape of a packed module, from its stored shapes."""
    packed, scale, zero = parts["weight_packed"], parts.get("weight_scale"), parts.get("weight_zero_point")
    claim = origin.claims.of(name) or _Claim(None, None, None)
    columns = origin.columns.get(name)
    bits = _bits(packed.shape, zero.shape if zero else None, columns, claim.bits)
    if columns is None and bits:
        columns = _stored_columns(packed.shape[-1], bits, scale.shape if scale else None, claim)
    strategy, group_size = _grouping(
        packed.shape[0] if packed.shape else 0, scale.shape if scale else None, columns, claim
    )
    return {
        "shape": (*packed.shape[:-1], columns) if packed.shape else (),
        "bits": bits,
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": zero is None,
        "scale_dtype": scale.dtype if scale else None,
    }


def _words(values: int, bits: int) -> int:
    """Words for `values` numbers of `bits` bits, laid densely (compressed-tensors 0.18; 4 and 8 bits always)."""
    return -(-values * bits // WORD)


@lru_cache(maxsize=1024)
def _bits(
    packed: tuple[int, ...], zero: tuple[int, ...] | None, columns: int | None, claimed: int | None
) -> int | None:
    """Bits per value: what the shapes allow, the config deciding only where they allow several; None if unknown."""
    if len(packed) < 2:
        return None
    if columns is None and zero is None:
        return claimed
    possible = [
        bits
        for bits in range(1, MOST_BITS + 1)
        if (columns is None or _words(columns, bits) == packed[-1])
        and (zero is None or len(zero) < 2 or _words(packed[-2], bits) == zero[-2])
    ]
    if claimed in possible:
        return claimed
    return possible[0] if len(possible) == 1 else None


def _stored_columns(words: int, bits: int, scale: tuple[int, ...] | None, claim: _Claim) -> int:
    """Columns of a packed row: a whole number of claimed groups if that fits the width, else as many as fit in it."""
    grouped = (scale[-1] if scale else 0) * (claim.group_size or 0)
    return grouped if grouped and _words(grouped, bits) == words else words * WORD // bits


def _grouping(
    rows: int, scale: tuple[int, ...] | None, columns: int | None, claim: _Claim
) -> tuple[str | None, int | None]:
    """(strategy, group size) of a scale of shape [rows, groups]; the size is None for one scale per row or tensor."""
    if scale is None:
        return None, None
    if len(scale) < 2 or scale[0] != rows:
        return "tensor", None
    fits = columns is not None and claim.group_size is not None and -(-columns // claim.group_size) == scale[1]
    if scale[1] == 1 and not (fits and claim.strategy == "group"):
        return "channel", None
    even = columns // scale[1] if columns and scale[1] and columns % scale[1] == 0 else None
    return "group", claim.group_size if fits else even
