"""What a checkpoint costs an engine: bytes in memory, bytes read per decoded token, and the time these imply.

`costs(checkpoint)` counts them from headers and config alone, for vLLM, under assumptions that a `Serving` holds.
`fit` draws the line through bytes and measured times. What a family's tokens read is data in `checkpoint/families`.
"""

from costs.account import DECODING, MEMORY, SPECULATIVE, Costs, Row, account, costs
from costs.caches import Caches
from costs.decoding import Decode, Pass, distinct
from costs.document import chosen, document, line, parts_of
from costs.line import Line, fit
from costs.parts import Part, part_of, parts, table_order
from costs.serving import KV_DTYPES, STATE_DTYPES, Serving
from costs.stored import Entry, Sizes, entries, total

__all__ = [
    "DECODING",
    "KV_DTYPES",
    "MEMORY",
    "SPECULATIVE",
    "STATE_DTYPES",
    "Caches",
    "Costs",
    "Decode",
    "Entry",
    "Line",
    "Part",
    "Pass",
    "Row",
    "Serving",
    "Sizes",
    "account",
    "chosen",
    "costs",
    "distinct",
    "document",
    "entries",
    "fit",
    "line",
    "part_of",
    "parts",
    "parts_of",
    "table_order",
    "total",
]
