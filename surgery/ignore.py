"""The ignore list as something to edit: entries added, removed, replaced, or derived from what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkpoint import CONFIG, Problem, split_name
from checkpoint.draft import Draft
from checkpoint.folding import fold
from checkpoint.patterns import Patterns, first_match, matches, pattern_problems
from surgery.deriving import derive_ignore
from surgery.mtp import MTP_ENTRIES, mtp_of
from surgery.quantization_config import ignore_list, targets_of, unsupported, with_ignore
from surgery.selection import LINEAR, dense_linears, packed_modules

_Contradictions = dict[tuple[str, str], str]
"""(code, module) -> the entry or target to blame."""


def set_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """The ignore list becomes `entries`. Refused where it contradicts what is stored."""
    return _edited(draft, entries)


def add_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """`entries` behind those that stand. Refused where they contradict what is stored."""
    before = ignore_list(draft)
    return _edited(draft, [*before, *entries], before)


def remove_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """All but `entries`, each of which must be there. Refused where what is stored needs them."""
    before = ignore_list(draft)
    absent = [entry for entry in entries if entry not in before]
    if absent:
        remedy = "`ckpt ignore SRC show` lists the entries"
        problems = [Problem("entry-absent", f"no entry '{entry}'", CONFIG, remedy=remedy) for entry in absent]
        return draft.refusing([*unsupported(draft), *problems])
    kept = [entry for entry in before if entry not in entries]
    return _edited(draft, kept, before)


def derive(draft: Draft) -> Draft:
    """The shortest robust list for what is stored, whatever stood there before."""
    problems = unsupported(draft)
    return draft.refusing(problems) if problems else set_ignore(draft, complete_ignore(draft, ()))


def complete_ignore(draft: Draft, entries: Iterable[str], modules: Iterable[str] | None = None) -> list[str]:
    """`entries`, and what is missing for `modules` to be covered: every dense linear module of `draft` by default."""
    complete = list(dict.fromkeys(entries))
    dense, packed = list(dense_linears(draft) if modules is None else modules), packed_modules(draft)
    prefix = mtp_of(draft.config.value).prefix
    if any(m.startswith(prefix) for m in dense) and not any(first_match(MTP_ENTRIES, m) for m in packed):
        complete += [entry for entry in MTP_ENTRIES if entry not in complete]
    ignored = Patterns(complete)
    uncovered = [module for module in dense if ignored.first(module) is None]
    return complete + derive_ignore(uncovered, packed)


def _edited(draft: Draft, entries: Sequence[str], before: Sequence[str] | None = None) -> Draft:
    """`draft` with `entries`, unless that makes for contradictions which the list `before` did not."""
    problems = [*unsupported(draft), *pattern_problems(entries, CONFIG)]
    if not problems:
        found = _contradictions(draft, entries)
        known = _contradictions(draft, before) if found and before is not None else {}
        problems = _problems({place: blamed for place, blamed in found.items() if place not in known})
    if problems:
        return draft.refusing(problems)
    old = ignore_list(draft)
    gone, new = [e for e in old if e not in entries], [e for e in dict.fromkeys(entries) if e not in old]
    summary = f"{len(new)} entries added, {len(gone)} removed"
    return with_ignore(draft, entries).noting("ignore", summary, {"added": new, "removed": gone})


def _contradictions(draft: Draft, entries: Iterable[str]) -> _Contradictions:
    """Packed modules that would be ignored, dense ones that would be built packed. Invalid entries cover nothing."""
    ignored = Patterns(entry for entry in entries if not pattern_problems([entry]))
    targets = [target for _, target in targets_of(draft) if not pattern_problems([target])]
    named = Patterns(targets)
    found: _Contradictions = {}
    for module in packed_modules(draft):
        if (entry := ignored.first(module)) is not None:
            found["ignore-covers-packed", module] = entry
    for module in dense_linears(draft):
        target = named.first(module)
        # by `Linear`, transformers packs whatever is one, the head and the routers too
        target = target or (LINEAR if LINEAR in targets else None)
        if target is not None and ignored.first(module) is None:
            found["ignore-lacks-dense", module] = target
    return found


def _problems(found: _Contradictions) -> list[Problem]:
    """`found` in words, modules alike folded."""
    problems = []
    for folded in fold((module, (code, blamed)) for (code, module), blamed in found.items()):
        code, blamed = folded.state
        if code == "ignore-covers-packed":
            text = f"is packed, but '{blamed}' would have engines look for a dense weight"
            remedy = "Narrow the entry"
        else:
            text = f"is dense, but target '{blamed}' would have engines look for packed weights"
            remedy = "Keep an entry that covers it; `ckpt ignore SRC derive` computes the list"
        problems.append(Problem(code, text, CONFIG, folded.pattern, remedy=remedy))
    return problems


def coverage(draft: Draft) -> dict[str, int]:
    """Each entry of the ignore list, and how many modules of the draft it covers, dense or packed."""
    owners = (split_name(tensor)[0] for tensor in draft.tensors)
    modules = dict.fromkeys([*dense_linears(draft), *packed_modules(draft), *owners])
    return {
        entry: 0 if pattern_problems([entry]) else sum(matches(entry, module) for module in modules)
        for entry in ignore_list(draft)
    }
