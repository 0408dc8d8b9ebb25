"""What a server answered, as values: text, tokens with their log-probabilities, counts, and when what arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """One greedy request.

    `prompt`: a text or token ids, which are continued as they stand, or messages, to which the server applies the
    model's chat template. `extra`: further members of the request, as `{"chat_template_kwargs": {...}}`.
    `ignore_eos` is sent to engines that know it, and left out elsewhere.
    """

    prompt: str | Sequence[int] | Sequence[Message]
    max_tokens: int
    ignore_eos: bool = False
    logprobs: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str) and bool(self.prompt) and isinstance(self.prompt[0], Mapping)


@dataclass(frozen=True)
class Token:
    """A token's text, as the server writes it, and the natural logarithm of its probability."""

    text: str
    logprob: float


@dataclass(frozen=True)
class Usage:
    """Tokens as the server counted them. `cached`: of the prompt, from the prefix cache; None where it does not say."""

    prompt: int
    completion: int
    cached: int | None = None


@dataclass(frozen=True)
class Answer:
    """`text` is what is for the reader, `reasoning` what a reasoning parser set apart before it.

    `finish`: `stop`, `length` or what else the server says. `tokens`: None where no log-probabilities were asked for or
    given. `usage`: None where the server counts nothing. `prompt_ids`, `ids`: the ids of the prompt and of the answer,
    where log-probabilities were asked for and the engine can tell ids; a text may be split otherwise when it is given
    back than it was generated.
    """

    text: str
    finish: str | None
    usage: Usage | None
    tokens: tuple[Token, ...] | None = None
    reasoning: str = ""
    prompt_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None

    @property
    def truncated(self) -> bool:
        return self.finish == "length"


@dataclass(frozen=True)
class Piece:
    """A part of an answer: when it arrived (`time.perf_counter_ns`), and how many tokens the server counted so far.

    `counted` is None where the server counts at the end only.
    """

    at: int
    text: str
    counted: int | None


@dataclass(frozen=True)
class Stream:
    """A streamed answer: when it was asked for, its pieces, when it ended.

    `tokens` are those of the answer by the server's own count; where it gave none (`by_usage` is false), the pieces.
    """

    sent: int
    pieces: tuple[Piece, ...]
    ended: int
    answer: Answer
    tokens: int
    by_usage: bool


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of a given continuation, token by token, each given all that stands before it.

    `straddles`: the first token also has the prompt's last characters, so it was scored with them.
    """

    tokens: tuple[Token, ...]
    straddles: bool = False

    @property
    def nll(self) -> float:
        """Sum over the tokens, in nats."""
        return -sum(token.logprob for token in self.tokens)

    @property
    def mean_nll(self) -> float:
        """Nats per token. ZeroDivisionError for no tokens."""
        return self.nll / len(self.tokens)
