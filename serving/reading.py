"""The documents of OpenAI's protocol, read into answers. Raises Garbled where they are not what they should be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checkpoint.document import MAX_DEPTH, MOST_DIGITS, is_deeper
from checkpoint.errors import brief
from serving.answers import Answer, Piece, Token, Usage
from serving.faults import blotted

REASONING = ("reasoning", "reasoning_content")
"""vLLM renamed it to the first, SGLang and transformers have the second."""

MOST_TOKENS = 100_000_000


class Garbled(ValueError):
    """A document that is not what the protocol says: `what` is wrong with `value`, a part of it."""

    def __init__(self, what: str, value: Any) -> None:
        super().__init__(what, value)
        self.what, self.value = what, value

    def __str__(self) -> str:
        return self.told(None)

    def told(self, secret: str | None) -> str:
        """In words, without `secret`."""
        return f"{self.what}: {brief(blotted(self.value, secret))}"


def value_of(raw: bytes) -> Any:
    """`raw` as JSON: no number that is none or of more than MOST_DIGITS, nested at most MAX_DEPTH deep.

    Raises ValueError.
    """
    try:
        value = json.loads(raw, parse_constant=_constant, parse_int=_whole)
    except RecursionError as error:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from error
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def answer_of(document: Any) -> Answer:
    """A whole answer, of either kind of completion."""
    choice = _choice(document)
    if choice is None:
        raise Garbled("an answer without choices", document)
    text, reasoning = _said(choice, "message")
    asked = _ids(choice, "prompt_token_ids") or _ids(document, "prompt_token_ids")
    return Answer(
        text,
        _text(choice, "finish_reason") or None,
        usage_of(document),
        tokens_of(choice),
        reasoning,
        asked,
        _ids(choice, "token_ids"),
    )


def joined(documents: Iterable[Any]) -> Answer:
    """The answer that the events of a stream make."""
    texts, thoughts, tokens = [], [], list[Token]()
    finish: str | None = None
    usage: Usage | None = None
    scored = False
    for document in documents:
        choice = _choice(document)
        usage = usage_of(document) or usage
        if choice is None:
            continue
        text, reasoning = _said(choice, "delta")
        texts.append(text)
        thoughts.append(reasoning)
        found = tokens_of(choice)
        scored = scored or found is not None
        tokens += found or ()
        finish = _text(choice, "finish_reason") or finish
    return Answer("".join(texts), finish, usage, tuple(tokens) if scored else None, "".join(thoughts))


def pieces_of(arrivals: Iterable[tuple[int, Any]], *, running: bool) -> tuple[Piece, ...]:
    """Those events that brought tokens: with a `running` count those that raise it, otherwise those that have text."""
    pieces: list[Piece] = []
    before = 0
    for at, document in arrivals:
        choice = _choice(document)
        if choice is None:
            continue
        usage = usage_of(document) if running else None
        text = "".join(reversed(_said(choice, "delta")))
        if usage is None and text:
            pieces.append(Piece(at, text, None))
        elif usage is not None and usage.completion > before:
            pieces.append(Piece(at, text, usage.completion))
            before = usage.completion
    return tuple(pieces)


def usage_of(document: Mapping[str, Any]) -> Usage | None:
    """Counts of an object that `_choice` has seen to be one."""
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    known = None if cached is None else _count(cached, "cached_tokens")
    return Usage(_count(usage.get("prompt_tokens"), "prompt_tokens"), _count(usage.get("completion_tokens", 0)), known)


def tokens_of(choice: Mapping[str, Any]) -> tuple[Token, ...] | None:
    """Generated tokens with log-probabilities, in the form of either kind of completion; None where there are none."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return None
    if isinstance(logprobs.get("content"), list):
        return tuple(_token(entry.get("token"), entry.get("logprob")) for entry in _mappings(logprobs["content"]))
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return None
    return tuple(_token(text, value) for text, value in zip(texts, values, strict=True))


def echoed_of(document: Any) -> list[tuple[str, float | None]]:
    """Tokens of an echoed text with their log-probabilities; the first has none. Empty where the server gave none."""
    choice = _choice(document)
    logprobs = choice.get("logprobs") if choice else None
    if not isinstance(logprobs, Mapping):
        return []
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return []
    return [(str(text), None if value is None else logprob(value)) for text, value in zip(texts, values, strict=True)]


def logprob(value: Any) -> float:
    """A natural logarithm of a probability: at most 0, but for rounding."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value > 1e-3:
        raise Garbled("no log-probability", value)
    return float(value)


def _token(text: Any, value: Any) -> Token:
    return Token(str(text), logprob(value))


def _choice(document: Any) -> Mapping[str, Any] | None:
    if not isinstance(document, Mapping):
        raise Garbled("no object", document)
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    (first, *_) = _mappings(choices)
    return first


def _mappings(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    wrong = [value for value in values if not isinstance(value, Mapping)]
    if wrong:
        raise Garbled("no object", wrong[0])
    return list(values)


def _said(choice: Mapping[str, Any], part: str) -> tuple[str, str]:
    """What is for the reader, and what the model thought before."""
    inner = choice.get(part)
    if not isinstance(inner, Mapping):
        return _text(choice, "text"), ""
    return _text(inner, "content"), next((text for key in REASONING if (text := _text(inner, key))), "")


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise Garbled(f"{key} is no text", value)
    return value or ""


def ids_of(document: Any) -> tuple[int, ...]:
    """The token ids that a tokenizer answers."""
    ids = _ids(document, "tokens") if isinstance(document, Mapping) else None
    if ids is None:
        raise Garbled("no token ids", document)
    return ids


def _ids(holder: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    values = holder.get(key)
    return tuple(_count(value, key) for value in values) if isinstance(values, list) else None


def _count(value: Any, name: str = "completion_tokens") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise Garbled(f"{name} is no count", value)
    return value


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{brief(text)} has more than {MOST_DIGITS} digits")
    return int(text)


def _constant(name: str) -> float:
    """-Infinity is a log-probability that servers write; NaN and Infinity are none."""
    if name == "-Infinity":
        return -math.inf
    raise ValueError(f"{name} is no number")
