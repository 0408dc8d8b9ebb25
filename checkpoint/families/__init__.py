"""Model families as data: one JSON file each says what the checkpoints of a family are made of.

A family file states tensor names with placeholders, shapes as arithmetic over config keys, which experts may be
fused and how they divide, where the MTP head is, which modules stay dense and which an engine fuses. To add a
family, write one file that satisfies `schemas/family.schema.json`; no code knows a family by name.
"""

from checkpoint.families.decoding import Decoder, Decoding, State
from checkpoint.families.family import Family, FusedSplit, MtpInfo, NeverPacked
from checkpoint.families.registry import family_names, find_family, load_family
from checkpoint.families.spec import Expected, ExpertBlock, Layer, Spec
from checkpoint.families.values import SpecError

__all__ = [
    "Decoder",
    "Decoding",
    "Expected",
    "ExpertBlock",
    "Family",
    "FusedSplit",
    "Layer",
    "MtpInfo",
    "NeverPacked",
    "Spec",
    "SpecError",
    "State",
    "family_names",
    "find_family",
    "load_family",
]
