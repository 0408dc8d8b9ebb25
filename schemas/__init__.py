"""JSON Schemas of every document the project reads or writes, and the validator that judges by them.

`names()` lists them; a schema refers to another by its `$id`, which is resolved here and never over a network.
`profiles/*` are schemas over the layout document that describe one published build each. `spelled` says which releases
of compressed-tensors refuse a quantization_config that others read.
"""

from schemas.catalogue import load, names
from schemas.releases import Spelled, Spelling, releases, spelled, spellings
from schemas.validation import BadSchema, SchemaFault, validate

__all__ = [
    "BadSchema",
    "SchemaFault",
    "Spelled",
    "Spelling",
    "load",
    "names",
    "releases",
    "spelled",
    "spellings",
    "validate",
]
