"""Prompts of so many tokens, as the server itself counts them, of neutral text that comes with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from checkpoint.errors import Problem
from latency.settings import Candidate, Settings
from serving import Ask, Incapable, Message, ServerFault

FILE = Path(__file__).with_name("neutral.txt")

SAMPLE_WORDS = 600
"""Of the text by which a tokenizer is judged; its tokens per word are those of all text from the same sentences."""

MOST_WORDS = 20
"""In a token of neutral text: what a server counts is not believed beyond."""

SHORTEST = 2
"""Words: the number that begins a prompt."""


@lru_cache(maxsize=1)
def sentences() -> tuple[str, ...]:
    return tuple(FILE.read_text(encoding="utf-8").splitlines())


def text(words: int, key: str) -> str:
    """So many words, drawn sentence by sentence as `key` says. It begins with a number that no other key gives."""
    random = Random(key)
    drawn = ["Note", f"{random.randrange(10**9):09d}."]
    drawn += _words(random, words - SHORTEST)
    return " ".join(drawn[: max(SHORTEST, words)])


def _words(random: Random, enough: int) -> Iterator[str]:
    count = 0
    while count < enough:
        sentence = random.choice(sentences()).split()
        count += len(sentence)
        yield from sentence


@dataclass(frozen=True)
class Prompts:
    """Prompts of one length for one candidate. `run` differs from one measurement to the next."""

    words: int
    settings: Settings
    run: str

    def ask(self, number: int, stream: int, candidate: int) -> Ask:
        """What stream `stream` asks candidate `candidate` in round `number`."""
        who = "all" if self.settings.prefix == "warm" else f"{number}/{stream}/{candidate}"
        return asking(text(self.words, f"{self.settings.seed}/{self.run}/{who}"), self.settings)


def asking(prompt: str, settings: Settings) -> Ask:
    return Ask(_message(prompt) if settings.chat else prompt, max_tokens=settings.output_tokens, ignore_eos=True)


def _message(prompt: str) -> list[Message]:
    return [{"role": "user", "content": prompt}]


def prompts_for(candidate: Candidate, settings: Settings, run: str) -> dict[int, Prompts]:
    """Prompts of each length, by the length in tokens of `candidate`; one of 128 misses by four or so.

    Asks the server to count the shortest prompt and a long one. Raises ServerFault.
    """
    sample = max(SHORTEST + 1, min(SAMPLE_WORDS, max(settings.prompt_tokens)))
    least, most = (counted(candidate, text(words, f"{run}/length"), settings) for words in (SHORTEST, sample))
    if (most - least) * MOST_WORDS < sample - SHORTEST or most <= least:
        found = f"counts {least} tokens in {SHORTEST} words, and {most} in {sample}"
        raise ServerFault(Problem("answer-garbled", found, file=candidate.server.url))
    words_per_token = (sample - SHORTEST) / (most - least)
    return {
        tokens: Prompts(SHORTEST + max(0, round((tokens - least) * words_per_token)), settings, run)
        for tokens in settings.prompt_tokens
    }


def counted(candidate: Candidate, prompt: str, settings: Settings) -> int:
    """Tokens of a prompt: by the server's tokenizer where it shows it, else as it counts them in a short answer."""
    server, ask = candidate.server, asking(prompt, settings)
    with suppress(Incapable):
        return len(server.token_ids(_message(prompt) if settings.chat else prompt))
    usage = server.answer(Ask(ask.prompt, max_tokens=1)).usage
    if usage is None:
        found = f"{server.engine.title} does not count the tokens of a prompt, so their number cannot be set"
        raise ServerFault(Problem("server-incapable", found, file=server.url))
    return usage.prompt
