"""JSON Schemas given with `--schema`, held against a layout document."""

from __future__ import annotations

import json
from collections.abc import Iterator

from reliability.fuzzing.mutation import mutate_json
from reliability.fuzzing.target import Target, expect
from schemas import BadSchema
from schemas.apart import judged

LAYOUT = {
    "family": "llama",
    "totals": {"bytes": 10, "tensors": 2},
    "modules": {
        "model.layers.{0-1}.mlp.up_proj": {
            "state": "packed",
            "kind": "linear",
            "bits": 4,
            "shape": [64, 64],
            "count": 2,
        },
        "lm_head": {"state": "dense", "kind": "head", "dtype": "BF16", "shape": [64, 64], "count": 1},
    },
    "quantization": {"ignore": ["lm_head", "re:.*aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"], "config_groups": {}},
}
SECONDS = 0.5
SCHEMAS = (
    {"properties": {"family": {"const": "llama"}, "modules": {"propertyNames": {"pattern": "^[a-z_.{}0-9-]+$"}}}},
    {
        "properties": {"modules": {"additionalProperties": {"$ref": "#/$defs/m"}}},
        "$defs": {"m": {"required": ["state"]}},
    },
    {"properties": {"modules": {"patternProperties": {"^lm": {"properties": {"dtype": {"enum": ["BF16"]}}}}}}},
    {"$ref": "https://ckpt.invalid/schemas/layout.schema.json"},
    {"allOf": [{"if": {"type": "object"}, "then": {"minProperties": 2}}, {"not": {"required": ["x"]}}], "oneOf": [{}]},
    {"properties": {"quantization": {"properties": {"ignore": {"contains": {"pattern": "^re:"}, "maxItems": 3}}}}},
)
WORDS = (
    "$ref", "$defs", "#/$defs/m", "#", "$id", "$dynamicRef", "$anchor", "$schema", "pattern", "patternProperties",
    "(a+)+$",
    "unevaluatedProperties", "dependentSchemas", "multipleOf", "uniqueItems", "http://127.0.0.1:1/x", "format",
    "prefixItems",
)  # fmt: skip


def read(data: bytes) -> None:
    """Judge by a schema; faults have a place and a word, and what is no schema is refused."""
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(schema, dict):
        return
    try:
        for fault in judged(LAYOUT, schema, SECONDS):
            expect(bool(fault.message), "a fault without a word")
            expect(fault.path.isprintable(), "a place that is not printable")
    except BadSchema as refusal:
        expect(bool(str(refusal)), "a refusal without a word")


def seeds() -> Iterator[bytes]:
    yield from (json.dumps(schema).encode() for schema in SCHEMAS)


TARGETS = (Target("schema", "JSON Schema given with --schema", read, seeds, mutate_json, WORDS),)
