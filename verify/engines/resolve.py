"""One checkpoint as one engine would build it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verify.engines import sglang, transformers, vllm
from verify.engines.engine import Engine, Scope
from verify.engines.entries import is_readable
from verify.engines.resolution import LoadError, Resolution, Resolved
from verify.engines.slots import Slot, slots

if TYPE_CHECKING:
    from verify.case import Case

RESOLVERS = {"vllm": vllm.resolve_scope, "sglang": sglang.resolve_scope, "transformers": transformers.resolve_scope}

MTP_IGNORE = ("re:^mtp.*", "re:.*mtp.*")
"""Ignore entries that keep a dense MTP head dense in every engine; either alone does. The first is what
compressed-tensors' `save_mtp_tensors_to_checkpoint` appends, the second also covers a prefixed name."""


def resolve(engine: Engine, case: Case, known: tuple[Slot, ...] | None = None) -> Resolved:
    """What `engine` builds for every module of `case`; nothing where it has no quantization_config, or a malformed one.

    `known` spares taking the slots of the case once more for each engine.
    """
    quantization = case.quantization
    if quantization is None or not is_readable(quantization):
        return Resolved(engine, {}, {})
    known = slots(case) if known is None else known
    main, errors = _scope(engine, case, "main", quantization, known)
    draft, more = _scope(engine, case, "draft", quantization, known) if _has_draft(case, known) else ({}, [])
    return Resolved(engine, main, draft, (*errors, *more))


def _scope(
    engine: Engine, case: Case, scope: Scope, quantization: Mapping[str, Any], known: tuple[Slot, ...]
) -> tuple[dict[str, Resolution], list[LoadError]]:
    view = engine.view(case.family.name if case.family else None, scope)
    return RESOLVERS[engine.name](engine, view, quantization, known) if view else ({}, [])


def _has_draft(case: Case, known: tuple[Slot, ...]) -> bool:
    """Whether an engine would build a draft model: the config declares one, and some of it is stored."""
    family = case.family
    prefix = family.mtp.prefix if family and family.mtp else "mtp."
    if family is not None and (case.spec is None or case.spec.mtp_layers < 1):
        return False
    return any(slot.name.startswith(prefix) for slot in known)


def concerned(case: Case, *names: str) -> tuple[Engine, ...]:
    """The engines of the case that are one of `names`."""
    return tuple(one.engine for one in case.resolved if one.engine.name in names)
