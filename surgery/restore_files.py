"""Side files and config.json as upstream wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from checkpoint import CONFIG, Checkpoint, Problem
from checkpoint.draft import Draft
from surgery.quantization_config import KEY, current, quantized_by, tidied

LOADED = (
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "additional_chat_templates/*", "*processor_config.json", "generation_config.json", "*.tiktoken", "spiece.model",
)  # fmt: skip
"""Files that tokenizers, processors and generation read: one that the base lacks would change what they do."""

OWN = ("README.md", ".gitattributes")
"""Files that a publisher writes for the export itself: taken from the base only where the export has none."""

NOT_OURS = (
    "*.safetensors", "*.gguf", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.onnx", "*.onnx_data", "*.h5",
    "*.msgpack",
)  # fmt: skip
"""Weights in other formats, or in folders of their own; they are not copied from a base."""


def restore_files(draft: Draft, base: Checkpoint) -> Draft:
    """Every side file of the base verbatim; config.json the base's text with the draft's quantization_config in it.

    A tokenizer or processor file that only the export has is removed, since loaders would prefer or merge it.
    """
    problems = [*_base_problems(base), *_misplaced(draft)]
    if problems or base.config_document is None:
        return draft.refusing(problems)
    taken = {name: base.side_files[name] for name in base.side_files if _is_taken(name, draft)}
    extra = [name for name in draft.side_files if _matches(name, LOADED) and name not in base.side_files]
    kept = {name: draft.side_files[name] for name in draft.side_files if name not in extra}
    quantization, config = current(draft), base.config_document
    if quantization is not None:
        config = config.with_value({**config.value, KEY: tidied(quantization)})
    summary = f"{len(taken)} files from {base.root}" + (f"; removed {', '.join(extra)}" if extra else "")
    restored = replace(draft, side_files={**kept, **taken}, config=config)
    parameters = {"taken": list(taken), "removed": extra}
    return restored.noting("restore-files", summary, parameters, sources={"base": base})


def _base_problems(base: Checkpoint) -> Iterator[Problem]:
    if base.config_document is None:
        yield Problem("config-absent", f"has no {CONFIG}", str(base.root), remedy="Give a base with its config.json")
    method = quantized_by(base.config)
    if method is not None:
        found, remedy = f"is quantized itself ({method})", "Give the unquantized base"
        yield Problem("base-quantized", found, str(base.root), remedy=remedy)


def _misplaced(draft: Draft) -> Iterator[Problem]:
    """A quantization that the base's text would take the place of: it is moved along from the top level only."""
    method = quantized_by(draft.config.value)
    if method is not None and current(draft) is None:
        found = f"states its quantization ({method}) elsewhere than in {KEY} at the top level"
        yield Problem("quantization-misplaced", found, CONFIG, remedy="Move it there first")


def _is_taken(name: str, draft: Draft) -> bool:
    if _matches(name, NOT_OURS):
        return False
    return not (_matches(name, OWN) and name in draft.side_files)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
