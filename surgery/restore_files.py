"""Side files and config.json as upstream wrote them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from checkpoint import CONFIG, Checkpoint, Problem
from checkpoint.draft import Draft
from surgery.quantization_config import KEY, current

LOADED = (
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "additional_chat_templates/*", "*processor_config.json", "generation_config.json", "*.tiktoken", "spiece.model",
)  # fmt: skip
"""Files that tokenizers, processors and generation read: one that the base lacks would change what they do."""

OWN = ("README.md", ".gitattributes")
"""Files that a publisher writes for the export itself: taken from the base only where the export has none."""

NOT_OURS = ("*.gguf", "*.bin", "*.pt", "*.pth", "*.onnx", "*.h5", "*.msgpack")
"""Weights in other formats; they are not copied from a base."""


def restore_files(draft: Draft, base: Checkpoint) -> Draft:
    """Every side file of the base verbatim; config.json the base's text with the draft's quantization_config in it.

    A tokenizer or processor file that only the export has is removed, since loaders would prefer or merge it.
    """
    if base.config_document is None:
        remedy = "Give a base with its config.json"
        return draft.refusing([Problem("config-absent", f"has no {CONFIG}", str(base.root), remedy=remedy)])
    taken = {name: path for name, path in base.side_files.items() if _is_taken(name, draft)}
    extra = [name for name in draft.side_files if _matches(name, LOADED) and name not in base.side_files]
    kept = {name: path for name, path in draft.side_files.items() if name not in extra}
    quantization = current(draft)
    config = base.config_document
    if quantization is not None:
        config = config.with_value({**config.value, KEY: quantization})
    summary = f"{len(taken)} files from {base.root}" + (f"; removed {', '.join(extra)}" if extra else "")
    return replace(draft, side_files={**kept, **taken}, config=config).noting("restore-files", summary)


def _is_taken(name: str, draft: Draft) -> bool:
    if _matches(name, NOT_OURS):
        return False
    return not (_matches(name, OWN) and name in draft.side_files)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
