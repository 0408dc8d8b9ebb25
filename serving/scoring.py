"""Log-probabilities of a text that is given: what a model thinks of an answer that another one wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.answers import Message, Scores, Token
from serving.faults import Declined, Incapable
from serving.reading import echoed_of
from serving.server import Server

Echo = list[tuple[str, float | None]]

PROBE = ("One, two,", " three, four")


def why_not_scoring(server: Server) -> str | None:
    """Why `score` cannot work with this server; None where it can. Asks it once for the log-probabilities of a few
    words, since a server may take the question and leave out the answer."""
    try:
        score(server, *PROBE)
    except (Incapable, Declined) as error:
        return str(error)
    return None


def score(
    server: Server, prompt: str | Sequence[int] | Sequence[Message], answer: str | Sequence[int], **extra: Any
) -> Scores:
    """Log-probabilities of the tokens of `answer` behind `prompt`.

    Where the server shows its tokens, both are tokenized apart and joined as ids, so that the answer's tokens are
    known exactly; elsewhere the texts are joined, and the tokens that make up the answer's text are taken. Messages are
    laid out by the server's chat template (`extra`: its arguments, as `chat_template_kwargs={...}`) and need the
    former. Raises Incapable where the server does not give log-probabilities of given text.
    """
    if not answer:
        return Scores(())
    try:
        before = _ids(server, prompt, special=True, **extra)
        behind = _ids(server, answer, special=False)
    except Incapable:
        if not (isinstance(prompt, str) and isinstance(answer, str)):
            raise
        return _by_text(server, prompt, answer)
    return Scores(_scored(server, _echo(server, [*before, *behind])[-len(behind) :]))


def _ids(server: Server, text: Any, *, special: bool, **extra: Any) -> list[int]:
    if isinstance(text, str) or isinstance(text[0], Mapping):
        return server.token_ids(text, special=special, **extra)
    return list(text)


def _by_text(server: Server, prompt: str, answer: str) -> Scores:
    """The last tokens, as many as are needed to make up the answer's text."""
    echo = _echo(server, prompt + answer)
    missing, first = len(answer), len(echo)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(echo[first][0])
    tail = "".join(text for text, _ in echo[first:])
    if not tail.endswith(answer):
        raise server.incapable("echoes other text than it was given, so the answer's tokens cannot be told")
    return Scores(_scored(server, echo[first:]), straddles=missing < 0)


def _echo(server: Server, prompt: str | list[int]) -> Echo:
    """All tokens of `prompt` with their log-probabilities. Raises Incapable."""
    asked = {"model": server.model, "prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0.0}
    try:
        document, generated = server.post("/completions", asked | {"max_tokens": 0}), 0
    except Declined:  # some servers always generate
        document, generated = server.post("/completions", asked | {"max_tokens": 1}), 1
    echo: Echo = server.read(echoed_of, document)
    if len(echo) <= generated or (isinstance(prompt, list) and len(echo) != len(prompt) + generated):
        remedy = "vLLM gives them."
        raise server.incapable("gives no log-probabilities of a given text", remedy)
    return echo[: len(echo) - generated]


def _scored(server: Server, echo: Echo) -> tuple[Token, ...]:
    tokens = tuple(Token(text, logprob) for text, logprob in echo if logprob is not None)
    if len(tokens) != len(echo):
        raise server.incapable("gives no log-probability for a token of the answer")
    return tokens
