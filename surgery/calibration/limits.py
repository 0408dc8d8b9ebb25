"""Token ids and lengths that the model has no place for, found before it runs for hours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checkpoint import CONFIG, Problem
from checkpoint.document import read_document


def limit_problems(model: Path, sequences: Sequence[Sequence[int]]) -> Iterator[Problem]:
    """Ids beyond `vocab_size`, and sequences beyond `max_position_embeddings`, of the model's config.json if it has
    one. Raises UnreadableCheckpoint for one that is malformed."""
    if not sequences or not (model / CONFIG).is_file():
        return
    config = read_document(model / CONFIG).value
    place = str(model / CONFIG)
    vocabulary, highest = _stated(config, "vocab_size"), max(map(max, sequences))
    if vocabulary is not None and highest >= vocabulary:
        found, remedy = f"vocab_size {vocabulary:,}", "Give the model that the tokenizer belongs to"
        yield Problem("token-unknown", found, place, expected=f"over {highest:,}, the highest id", remedy=remedy)
    positions, longest = _stated(config, "max_position_embeddings"), max(map(len, sequences))
    if positions is not None and longest > positions:
        found, remedy = f"max_position_embeddings {positions:,}", "Set max_tokens"
        yield Problem("sequence-long", found, place, expected=f"{longest:,}, the longest sequence", remedy=remedy)


def _stated(config: dict[str, Any], key: str) -> int | None:
    """A number of the language model, from its own section or the top level."""
    section = config.get("text_config")
    value = section.get(key) if isinstance(section, dict) and key in section else config.get(key)
    return value if isinstance(value, int) else None
