"""Where a finding is, as a file and a line: a tensor is where the index lists it, a config path is in config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from checkpoint import CONFIG, INDEX, Checkpoint
from checkpoint.folding import unfold
from verify.finding import Finding
from verify.reports.lines import line_of, line_of_key, parts_of
from verify.reports.wording import places

MOST = 20
"""Places of one finding that are looked up."""

LARGEST = 1 << 20
"""Bytes of a side file that is read for its lines."""

ENDINGS = (".json", ".jinja", ".txt", ".safetensors", ".model", ".py", ".md")
"""What the names of files end in, be they there or missing."""

SUFFIXES = ("", ".weight", ".weight_packed", ".weight_scale")


@dataclass(frozen=True)
class Spot:
    """A line of a file of the checkpoint, by the file's name, and what is meant there."""

    file: str
    line: int
    name: str


@dataclass(frozen=True)
class Atlas:
    """Looks places up in a checkpoint."""

    checkpoint: Checkpoint

    def spots(self, finding: Finding) -> list[Spot]:
        """At least one spot for every finding."""
        return list(dict.fromkeys(self._spot(place) for place in places(finding)[:MOST]))

    def _spot(self, place: str) -> Spot:
        head, colon, rest = place.partition(": ")
        if colon and head.endswith(ENDINGS):
            return Spot(head, self._line_in(head, rest), place)
        if place.endswith(ENDINGS):
            return Spot(place, 1, place)
        if parts_of(place)[:1] and parts_of(place)[0] in self.checkpoint.config:
            return Spot(CONFIG, self._line_in(CONFIG, place), place)
        return self._tensor(place)

    def _tensor(self, place: str) -> Spot:
        """The first tensor that `place` stands for."""
        pattern = next(unfold(place), place)
        for name in (pattern + suffix for suffix in SUFFIXES):
            if name in self.checkpoint.tensors:
                line = self._line_of_tensor(name)
                return Spot(INDEX, line, place) if line else Spot(self.checkpoint.tensors[name].path.name, 1, place)
        return Spot(self._home, (self._line_of_tensor(pattern) or 1) if self._home == INDEX else 1, place)

    @cached_property
    def _home(self) -> str:
        """The file for what is nowhere."""
        if self.checkpoint.index:
            return INDEX
        return CONFIG if self.checkpoint.config_document else next(iter(self.checkpoint.shards), CONFIG)

    def _line_of_tensor(self, name: str) -> int | None:
        return line_of_key(self.checkpoint.index.text, name) if self.checkpoint.index else None

    def _line_in(self, file: str, path: str) -> int:
        if file == INDEX:
            return self._line_of_tensor(next(unfold(path), path)) or 1
        text = self._text(file)
        return line_of(text, parts_of(path)) if text else 1

    def _text(self, file: str) -> str | None:
        """The text of config.json or of a small JSON side file; None where there is none that can be walked."""
        if file == CONFIG:
            document = self.checkpoint.config_document
            return document.text if document else None
        path = self.checkpoint.side_files.get(file)
        if path is None or not file.endswith(".json") or path.stat().st_size > LARGEST:
            return None
        try:
            text = path.read_text(encoding="utf-8")
            json.loads(text)
        except (OSError, ValueError, RecursionError):
            return None
        return text
