"""How long a served model takes: first token, each token, whole turns, several streams, accepted drafts.

`measure` asks every `Candidate` in turns, in an order drawn anew each round, and returns a `Result`: what each request
took, and how the candidates differ, with what noise alone could explain called noise.
"""

from latency.document import document
from latency.measuring import Cell, Failure, Result, measure
from latency.settings import Candidate, Prefix, Settings
from latency.spread import FIGURES, Difference, Spread, differences, drafts, values
from latency.turns import Round, Turn, turn_of

__all__ = [
    "FIGURES",
    "Candidate",
    "Cell",
    "Difference",
    "Failure",
    "Prefix",
    "Result",
    "Round",
    "Settings",
    "Spread",
    "Turn",
    "differences",
    "document",
    "drafts",
    "measure",
    "turn_of",
    "values",
]
