"""Tokenizer, templates and processors: the files that make tokens of text, which an exporter may not touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from checkpoint import CONFIG, Checkpoint, Problem, UnreadableCheckpoint
from checkpoint.document import MOST_DIGITS, parse_json
from checkpoint.side_files import SideFiles, is_same, size_of
from verify.case import Case
from verify.finding import Severity
from verify.registry import Hit, rule

RESTORE = "ckpt restore-files SRC --base BASE"
VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "vocab.txt")
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")
SPECIAL_IDS = tuple(f"{token}_token_id" for token in ("bos", "eos", "pad", "image", "video", "vision_start"))
SMALL = 64 * 1024 * 1024
"""Bytes; a larger side file is compared by size alone."""


@rule(
    "X04",
    "the tokenizer is that of the base, its ids in the vocabulary",
    evidence="wrong tokens",
    remedy="ckpt restore-files SRC --base BASE",
)
def tokenizer(case: Case) -> Iterable[Hit]:
    yield from _ids_beyond(case)
    for name in SETTINGS:
        if name in case.checkpoint.side_files and _read(case.checkpoint.side_files[name]) is None:
            yield Hit(name, "not a JSON object", "engines cannot load the tokenizer", RESTORE)
    if case.base is None:
        return
    for name in VOCABULARY:
        yield from _compare(case, name, changed="error", consequence="the model reads other tokens than it was taught")
    for name in (*SETTINGS, *(template for template in TEMPLATES if template in case.checkpoint.side_files)):
        yield from _compare(case, name, changed="warning", consequence="prompts are laid out or ended differently")


@rule(
    "X05",
    "the tokenizer loads in older transformers",
    severity="warning",
    evidence="GPTQModel#2403, ms-swift#8352",
    remedy="ckpt restore-files SRC --base BASE",
    versions="transformers 5 writes both, transformers 4 refuses both",
)
def tokenizer_class(case: Case) -> Iterable[Hit]:
    config = _side_json(case, "tokenizer_config.json")
    if config.get("tokenizer_class") == "TokenizersBackend":
        consequence = "transformers 4 knows no such class"
        yield Hit("tokenizer_config.json: tokenizer_class", "TokenizersBackend", consequence, RESTORE)
    if isinstance(config.get("extra_special_tokens"), list):
        consequence = "transformers 4 expects a map and raises"
        yield Hit("tokenizer_config.json: extra_special_tokens", "a list", consequence, RESTORE)


@rule(
    "X06",
    "generation ends where the model does",
    severity="warning",
    evidence="the eos ids of both configs",
    remedy="ckpt restore-files SRC --base BASE",
)
def generation(case: Case) -> Iterable[Hit]:
    if "generation_config.json" not in case.checkpoint.side_files:
        if case.base is None or "generation_config.json" in case.base.side_files:
            consequence = "engines fall back on defaults: no second end token, other sampling"
            yield Hit("generation_config.json", "missing", consequence, RESTORE)
        return
    stops = _as_set(_side_json(case, "generation_config.json").get("eos_token_id"))
    absent = _as_set(_text_value(case.config, "eos_token_id")) - stops
    if stops and absent:
        found = f"without {sorted(absent)}, the end token of config.json"
        yield Hit("generation_config.json: eos_token_id", found, "answers run on", RESTORE)


@rule(
    "X07",
    "a vision model has its processors, and a chat model its template",
    evidence="Qwen3-VL#1015, Qwen3-VL#912",
    remedy="ckpt restore-files SRC --base BASE",
)
def processors(case: Case) -> Iterable[Hit]:
    files = case.checkpoint.side_files
    base = case.base.side_files if case.base else {}
    vision = isinstance(case.config.get("vision_config"), dict)
    if vision:
        if not any(name in files for name in PROCESSORS):
            yield Hit(PROCESSORS[0], "missing", "engines cannot read an image", RESTORE)
        elif PROCESSORS[0] in files and "image_processor_type" not in _side_json(case, PROCESSORS[0]):
            yield Hit(f"{PROCESSORS[0]}: image_processor_type", "missing", "transformers raises", RESTORE)
        if "video_preprocessor_config.json" in base and "video_preprocessor_config.json" not in files:
            yield Hit("video_preprocessor_config.json", "missing", "engines cannot read a video", RESTORE)
    if case.base is not None or vision:
        yield from _template(case)


@rule(
    "X09",
    "the licence of the base goes with it",
    severity="warning",
    evidence="Hub review",
    remedy="ckpt restore-files SRC --base BASE",
    needs_base=True,
)
def licence(case: Case) -> Iterable[Hit]:
    for name in case.base.side_files if case.base else ():
        if name.upper().startswith(LICENCES):
            yield from _compare(case, name, changed="warning", consequence="its terms ask that they be passed on")


def _template(case: Case) -> Iterator[Hit]:
    """A chat template of its own, or in the tokenizer's settings; a base model may have none."""
    if _has_template(case.checkpoint) or (case.base and not _has_template(case.base)):
        return
    found = "no chat template" + ("; the base has one" if case.base else "")
    severity: Severity = "error" if case.base else "warning"
    yield Hit(TEMPLATES[0], found, "chats raise, or are laid out otherwise", RESTORE, severity)


def _has_template(checkpoint: Checkpoint) -> bool:
    stated = _json_of(checkpoint, "tokenizer_config.json").get("chat_template")
    return bool(stated) or any(name in checkpoint.side_files for name in TEMPLATES)


def _compare(case: Case, name: str, *, changed: Severity, consequence: str) -> Iterator[Hit]:
    ours, theirs = case.checkpoint.side_files, case.base.side_files if case.base else {}
    if name not in theirs or (name == "generation_config.json" and name not in ours):
        return
    if name not in ours:
        severity: Severity = "error" if name == "tokenizer.json" else "warning"
        yield Hit(name, "missing; the base has it", consequence, RESTORE, severity=severity)
    elif not _is_same(ours, theirs, name):
        content = _read(ours[name]) if name.endswith(".json") else None
        rewritten = content is not None and content == _read(theirs[name])
        found = "written anew, with the same content" if rewritten else "differs from the base's"
        why = "no engine minds, hashes do" if rewritten else consequence
        yield Hit(name, found, why, RESTORE, severity="note" if rewritten else changed)


def _is_same(ours: SideFiles, theirs: SideFiles, name: str) -> bool:
    try:
        size = size_of(ours, name)
        return size == size_of(theirs, name) if size > SMALL else is_same(ours, theirs, name)
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), name)) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableCheckpoint(Problem("file-unreadable", error.strerror or str(error), path.name)) from error


def _ids_beyond(case: Case) -> Iterator[Hit]:
    """Token ids that have no row in the embedding."""
    size = _text_value(case.config, "vocab_size")
    if type(size) is not int:
        return
    added = _side_json(case, "tokenizer_config.json").get("added_tokens_decoder")
    ids = [int(key[:MOST_DIGITS]) for key in added if key.isdecimal()] if isinstance(added, dict) else []
    consequence = "an index outside the embedding: a crash, or another token's row"
    if ids and max(ids) >= size:
        yield Hit("tokenizer_config.json", f"token id {max(ids)}, vocab_size {size}", consequence, RESTORE)
    for key in SPECIAL_IDS:
        for value in sorted(_as_set(case.config.get(key)) | _as_set(_text_value(case.config, key))):
            if value >= size:
                yield Hit(f"{CONFIG}: {key}", f"{value}, vocab_size {size}", consequence, RESTORE)


def _text_value(config: Mapping[str, Any], key: str) -> Any:
    text = config.get("text_config")
    return text[key] if isinstance(text, dict) and key in text else config.get(key)


def _as_set(value: Any) -> set[int]:
    return {one for one in (value if isinstance(value, list) else [value]) if type(one) is int}


def _side_json(case: Case, name: str) -> dict[str, Any]:
    return _json_of(case.checkpoint, name)


def _json_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    files = checkpoint.side_files
    return (_read(files[name]) or {}) if name in files else {}


def _read(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None where it is none, which X04 reports, or too large to be one of these files."""
    raw = _bytes(path) if path.stat().st_size <= SMALL else b""
    try:
        return parse_json(raw, path.name)
    except UnreadableCheckpoint:
        return None
