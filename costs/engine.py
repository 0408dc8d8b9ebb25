"""What vLLM allocates for what is stored. Read in vLLM 0.24.0; the file is named where a number comes from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from checkpoint import TensorRef
from checkpoint.dtypes import BITS, FLOATS
from checkpoint.families import Decoder, Family
from costs.stored import SCALES, Entry

CONFIG_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
VOCABULARY = frozenset({"embedding", "head"})
VOCABULARY_TILE = 64
"""Rows of embedding and head are padded to a multiple (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""

NOT_HELD = frozenset({"weight_shape"})
"""Kept as 16 bytes a layer, 8 an expert (compressed_tensors_wNa16.py): nothing beside the weights, and not counted."""

MROPE_POSITIONS = 4
"""A table for positions in three dimensions has so many times the positions (rotary_embedding/mrope.py)."""


@dataclass(frozen=True)
class Engine:
    """vLLM with `ranks` tensor-parallel ranks; `dtype` is the config's, None where it states none: then plain tensors
    stay as they are stored."""

    dtype: str | None
    ranks: int
    family: Family | None
    decoder: Decoder | None

    def allocated(self, entry: Entry) -> int:
        """Bytes of the parameters that a rank has for `entry`: packed as stored, scales and plain floating point in
        the config's dtype, into which vLLM's loaders cast.

        Weights are repacked for kernels to the same size. Packed linear layers off a kernel's tile, which Marlin pads,
        are counted as they are stored.
        """
        held = self.family.held(entry.name) if self.family else None
        tensors = {suffix: ref for suffix, ref in entry.tensors.items() if suffix not in NOT_HELD}
        sizes = (-(-self._bytes(entry, ref, held) // self._divided(entry, suffix)) for suffix, ref in tensors.items())
        return entry.count * sum(sizes)

    def _bytes(self, entry: Entry, ref: TensorRef, held: str | None) -> int:
        """Of the whole tensor, cast and padded."""
        dtype = held or self.dtype
        values = prod(ref.shape)
        nbytes = values * BITS[dtype] // 8 if dtype and ref.dtype in FLOATS else ref.nbytes
        if entry.part.id not in VOCABULARY or not ref.shape or not ref.shape[0]:
            return nbytes
        return nbytes // ref.shape[0] * padded(ref.shape[0])

    def _divided(self, entry: Entry, suffix: str) -> int:
        """Into how many parts the ranks divide a tensor."""
        if self.ranks == 1 or self.family is None or self.family.decoding is None or self.decoder is None:
            return 1
        parallel = self.family.decoding.parallel
        if parallel.heads and parallel.heads.fullmatch(entry.name):
            return min(self.ranks, self.decoder.head_parts)
        if parallel.rows.fullmatch(entry.name):
            return self.ranks
        whole = suffix == "bias" or (suffix in SCALES and entry.layout.get("strategy") != "group")
        return self.ranks if parallel.columns.fullmatch(entry.name) and not whole else 1


def padded(rows: int) -> int:
    """The rows that embedding and head have for a vocabulary of `rows`."""
    return -(-rows // VOCABULARY_TILE) * VOCABULARY_TILE


def config_dtype(*sections: Mapping[str, Any]) -> str | None:
    """The dtype that the first of the config's `sections` to have one states, as safetensors names it."""
    found = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    name = next((one for one in found if isinstance(one, str)), None)
    return CONFIG_DTYPES.get(name or "")


def rotary_table(family: Family, config: Mapping[str, Any], dtype: str | None) -> int | None:
    """Bytes of the table of rotary embeddings, which all layers share; None where the config does not tell.

    positions x rotated width x bytes of the model's dtype; four times the positions for three-dimensional ones.
    """
    if family.decoding is None:
        return None
    rotary, text = family.decoding.rotary, family.text(config)
    positions = text.get(rotary.positions)
    if type(positions) is not int or positions < 0:
        return None
    rope = next((one for key in ("rope_parameters", "rope_scaling") if isinstance(one := text.get(key), dict)), {})
    stated = (section.get("partial_rotary_factor") for section in (rope, text))
    share = next((one for one in stated if isinstance(one, (int, float)) and 0 < one <= 1), rotary.share)
    width = int(family.values(config).evaluate(rotary.width) * share)
    times = MROPE_POSITIONS if "mrope_section" in rope else 1
    return times * positions * max(width, 0) * BITS[dtype or "BF16"] // 8
