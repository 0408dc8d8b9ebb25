"""Does an export descend from a base? Read off configs, shapes and, for content, the first bytes of some tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checkpoint import CONFIG, Checkpoint, Files, Problem, split_name
from checkpoint.families import find_family
from checkpoint.folding import fold
from surgery.mtp import mtp_of

_SAMPLES = 24
_SAMPLE_BYTES = 8 * 1024

_FREE = frozenset(
    {
        "quantization_config", "compression_config", "transformers_version", "_name_or_path", "dtype", "torch_dtype",
        "use_cache", "text_config", "vision_config", "tie_word_embeddings", "architectures", "bos_token_id",
        "eos_token_id", "pad_token_id", "mtp_num_hidden_layers",
    }
)  # fmt: skip
"""Config keys that an exporter may change without changing the model."""


def lineage_problems(export: Checkpoint, base: Checkpoint, *, content: bool = True) -> list[Problem]:
    """Why `export` does not descend from `base`; empty where it does, as far as can be seen.

    `content` compares the first bytes of up to 24 dense matrices: another revision or a fine-tune has the same shapes.
    """
    problems = [*_config_problems(export.config, base.config), *_shape_problems(export, base)]
    if not problems and content:
        problems += _content_problems(export, base)
    return problems


def _config_problems(export: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Problem]:
    for section in ("", "text_config", "vision_config"):
        mine, theirs = (c.get(section, {}) if section else c for c in (export, base))
        if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
            continue
        for key in sorted((mine.keys() & theirs.keys()) - _FREE):
            if mine[key] != theirs[key] and not isinstance(theirs[key], dict):
                place = f"{section}.{key}" if section else key
                found = f"{place} is {mine[key]!r}"
                yield Problem("lineage", found, CONFIG, expected=f"{theirs[key]!r}, as in the base")


def _shape_problems(export: Checkpoint, base: Checkpoint) -> Iterator[Problem]:
    shapes = (
        (name, (ref.shape, base.tensors[name].shape)) for name, ref in export.tensors.items() if name in base.tensors
    )
    for folded in fold((name, pair) for name, pair in shapes if pair[0] != pair[1]):
        found, expected = (str(list(shape)) for shape in folded.state)
        yield Problem("lineage", f"shape {found}", None, folded.pattern, f"{expected}, as in the base")


def _content_problems(export: Checkpoint, base: Checkpoint) -> Iterator[Problem]:
    names = list(_samples(export, base))
    if not names:
        return
    with Files() as files:
        equal = sum(_same_start(export, base, name, files) for name in names)
    if equal * 2 < len(names):
        found = f"only {equal} of {len(names)} dense tensors that were looked at start with the base's bytes"
        remedy = "Give the revision it was made from; --any-lineage if a fine-tune is meant to take it"
        yield Problem("lineage", found, remedy=remedy)


def _samples(export: Checkpoint, base: Checkpoint) -> Iterable[str]:
    """Dense matrices of both, spread over the model: no norms, which exporters re-round, and of the vision tower, which
    fine-tuning often leaves alone, only where there is nothing else."""
    family, head = find_family(base.config), mtp_of(base.config).prefix
    shared: list[str] = []
    vision: list[str] = []
    for name, ref in export.tensors.items():
        other = base.tensors.get(name)
        if other is None or other.dtype != ref.dtype or len(ref.shape) < 2 or name.startswith(head):
            continue
        kind = family.kind(split_name(name)[0]) if family else None
        (vision if kind == "vision" else shared).append(name)
    names = shared or vision
    return names[:: max(1, len(names) // _SAMPLES)][:_SAMPLES]


def _same_start(export: Checkpoint, base: Checkpoint, name: str, files: Files) -> bool:
    mine, theirs = export.tensors[name], base.tensors[name]
    size = min(mine.nbytes, _SAMPLE_BYTES)
    return files.read(mine.path, mine.offset, size) == files.read(theirs.path, theirs.offset, size)
