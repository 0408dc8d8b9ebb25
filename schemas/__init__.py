"""JSON Schemas of every document the project reads or writes, and the validator that judges by them.

`names()` lists them; a schema refers to another by its `$id`, which is resolved here and never over a network.
`profiles/*` are schemas over the layout document that describe one published build each.
"""

from schemas.catalogue import load, names
from schemas.validation import BadSchema, SchemaFault, validate

__all__ = ["BadSchema", "SchemaFault", "load", "names", "validate"]
