"""The multi-token-prediction head: where a model has one, and how an ignore list says that it stays dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint.families import MtpInfo, find_family

MTP_ENTRIES = ("re:^mtp.*", "re:.*mtp.*")
"""Both spellings of "the MTP head stays dense": SGLang looks for the first (sglang#36786), others need the second."""

_USUAL = MtpInfo("mtp.", "mtp_num_hidden_layers")


def mtp_of(config: Mapping[str, Any]) -> MtpInfo:
    """Where a model of this config keeps its MTP head; the usual place where its family is unknown or names none."""
    family = find_family(config)
    return (family.mtp if family else None) or _USUAL
