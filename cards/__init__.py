"""The model card of a checkpoint: a section of README.md that says what is stored, why, and what reads it.

`make_card` reads a folder and gives its README.md as it should be, with all that people wrote in it untouched. Parts of
models and needs of engines are data: `parts.json`, `engines.json`.
"""

from cards.card import Card, Options, make_card
from cards.engines import Advice, Need, advice
from cards.markers import README, REPO, parse_readme
from cards.model import Model, look_at

__all__ = [
    "README",
    "REPO",
    "Advice",
    "Card",
    "Model",
    "Need",
    "Options",
    "advice",
    "look_at",
    "make_card",
    "parse_readme",
]
