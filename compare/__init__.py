"""Two checkpoints beside each other, dense or packed: what came, went, stayed, changed, and by how much.

`compare` returns a `Result`, which `document` turns into what `schemas/diff.schema.json` describes and `draw` into a
plot. Values are those that `verify.arithmetic` says a packed weight stands for.
"""

from compare.form import document
from compare.measures import Sums
from compare.plot import FORMATS, draw, require_plots
from compare.result import Entry, Level, Result
from compare.run import compare, open_both

__all__ = [
    "FORMATS",
    "Entry",
    "Level",
    "Result",
    "Sums",
    "compare",
    "document",
    "draw",
    "open_both",
    "require_plots",
]
