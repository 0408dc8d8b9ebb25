"""What one request took, and one round of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving import Speculation, Stream

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True)
class Turn:
    """One request, in milliseconds from its first byte sent.

    `first`: to the first token. `whole`: to the end of the stream. `token`: per token after the first ones, None for an
    answer that came in one piece. `output_tokens` are those that were really emitted, by the server's count; `counted`
    is false where it gave none and pieces were counted instead. `cached`: of the prompt, where the server says so.
    """

    first: float | None
    whole: float
    token: float | None
    prompt_tokens: int | None
    output_tokens: int
    cached: int | None
    counted: bool


@dataclass(frozen=True)
class Round:
    """What one candidate did in one round; `place` in the round's order, from 0.

    `tokens_per_second`: emitted by all streams, from the first byte sent to the end of the last stream.
    """

    number: int
    place: int
    turns: tuple[Turn, ...]
    tokens_per_second: float
    speculation: Speculation | None


def turn_of(stream: Stream) -> Turn:
    usage = stream.answer.usage
    return Turn(
        first=(stream.pieces[0].at - stream.sent) / NS_PER_MS if stream.pieces else None,
        whole=(stream.ended - stream.sent) / NS_PER_MS,
        token=token_ms(stream),
        prompt_tokens=usage.prompt if usage else None,
        output_tokens=stream.tokens,
        cached=usage.cached if usage else None,
        counted=stream.by_usage,
    )


def token_ms(stream: Stream) -> float | None:
    """(last - first) / (n - m): n tokens in all, m of them in the first piece, which is 1 where the server counts at
    the end only. With speculative decoding a piece has several tokens, so pieces are never counted for tokens."""
    if len(stream.pieces) < 2:
        return None
    first, last = stream.pieces[0], stream.pieces[-1]
    begun = 1 if first.counted is None else first.counted
    after = (stream.tokens if last.counted is None else last.counted) - begun
    return (last.at - first.at) / NS_PER_MS / after if after > 0 else None


def tokens_per_second(streams: Sequence[Stream]) -> float:
    nanoseconds = max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
    return sum(stream.tokens for stream in streams) / (nanoseconds / NS_PER_S)
