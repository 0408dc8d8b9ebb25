"""What one source gives while sequences are filled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from checkpoint import Problem
from surgery.calibration.filling import Conversation
from surgery.calibration.reading import SHOWN, Content, Piece, SourceText, has_system
from surgery.calibration.rendering import Renderer, TemplateFault, without_system


class Given(NamedTuple):
    """A conversation that was handed out: its own words, whether a system turn is among them, its tokens."""

    words: str
    system: bool
    tokens: int


class Supply:
    """The conversations of source number `number` in the order that `seed` decides.

    `used` is shared by the supplies of a set: a conversation that any of them handed out is handed out by none again.
    """

    def __init__(self, number: int, source: SourceText, renderer: Renderer, seed: int, used: set[bytes]) -> None:
        self.source = source
        self.given: dict[bytes, Given] = {}
        self.number = number
        self._renderer = renderer
        self._seed = seed
        self._used = used
        self._faults: dict[str, list[int]] = {}

    def conversations(self) -> Iterator[Conversation]:
        """Each conversation when it is asked for, so that nothing is rendered that nobody needs."""
        for piece in sorted(self.source.pieces, key=self._drawn):
            if piece.key in self._used:
                continue
            content = self._content(piece)
            try:
                ids = self._renderer.ids(content)
            except TemplateFault as fault:
                self._faults.setdefault(str(fault), []).append(piece.line)
                continue
            self._used.add(piece.key)
            self.given[piece.key] = Given(_words(content), has_system(content), len(ids))
            yield Conversation(self.number, piece.key, ids)

    def problems(self) -> Iterator[Problem]:
        """Each thing that the template or the tokenizer objected to, with the lines it concerns."""
        for words, lines in self._faults.items():
            named = ", ".join(map(str, sorted(lines)[:SHOWN])) + (", ..." if len(lines) > SHOWN else "")
            place = f"line{'s' * (len(lines) > 1)} {named}"
            yield Problem("template-fault", words, self.source.spec.name, place)

    def _content(self, piece: Piece) -> Content:
        content = self.source.content(piece)
        return without_system(content) if self.source.spec.system == "drop" else content

    def _drawn(self, piece: Piece) -> bytes:
        """What the order goes by: the same on every machine, and wherever in the file the conversation stands."""
        return hashlib.sha256(f"{self._seed}:{piece.key.hex()}".encode()).digest()


def _words(content: Content) -> str:
    """What the turns say, without roles and without what the template adds."""
    return content if isinstance(content, str) else "\n".join(turn.get("content") or "" for turn in content)
