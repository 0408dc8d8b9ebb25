"""What is measured: which servers, with which prompts, how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving import Server

Prefix = Literal["cold", "warm"]


@dataclass(frozen=True)
class Candidate:
    """A served model under the name that the result has for it."""

    name: str
    server: Server


@dataclass(frozen=True)
class Settings:
    """`streams` and `prompt_tokens`: every pair of them is a cell, measured by itself.

    `rounds`: in each, every candidate is asked once, by all streams at the same time. `warmup`: rounds before them that
    do not count. `prefix`: `cold` has a prompt of its own for each request, so that no prefix cache can know it; `warm`
    asks the same prompt every time. `chat`: prompts are messages, laid out by the model's template.
    """

    streams: tuple[int, ...] = (1,)
    prompt_tokens: tuple[int, ...] = (128,)
    output_tokens: int = 128
    prefix: Prefix = "cold"
    rounds: int = 10
    warmup: int = 2
    seed: int = 0
    chat: bool = False
