"""The ignore list as something to edit: entries added, removed, replaced, or derived from what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checkpoint import CONFIG, Problem, split_name
from checkpoint.draft import Draft
from checkpoint.families import find_family
from checkpoint.folding import fold
from checkpoint.patterns import first_match, matches, pattern_problems
from surgery.deriving import MTP_ENTRIES, derive_ignore
from surgery.quantization_config import current, ignore_list, unsupported, with_ignore
from surgery.selection import dense_linears, is_covered, packed_modules


def set_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """The ignore list becomes `entries`. Refused where it would contradict what is stored."""
    problems = [*unsupported(draft), *pattern_problems(entries, CONFIG)]
    if not problems:
        problems = list(_contradictions(draft, entries))
    if problems:
        return draft.refusing(problems)
    before = ignore_list(current(draft) or {})
    gone, new = [e for e in before if e not in entries], [e for e in entries if e not in before]
    return with_ignore(draft, entries).noting("ignore", f"{len(new)} entries added, {len(gone)} removed")


def add_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """`entries` behind those that stand."""
    return set_ignore(draft, [*ignore_list(current(draft) or {}), *entries])


def remove_ignore(draft: Draft, entries: Sequence[str]) -> Draft:
    """All but `entries`, each of which must be there."""
    before = ignore_list(current(draft) or {})
    absent = [entry for entry in entries if entry not in before]
    if absent:
        remedy = "`ckpt ignore SRC show` lists the entries"
        problems = [Problem("entry-absent", f"no entry {entry!r}", CONFIG, remedy=remedy) for entry in absent]
        return draft.refusing([*unsupported(draft), *problems])
    return set_ignore(draft, [entry for entry in before if entry not in entries])


def derive(draft: Draft) -> Draft:
    """The shortest robust list for what is stored, whatever stood there before."""
    return (
        set_ignore(draft, complete_ignore(draft, ())) if not unsupported(draft) else draft.refusing(unsupported(draft))
    )


def complete_ignore(draft: Draft, entries: Iterable[str]) -> list[str]:
    """`entries`, and what is missing for every dense linear module of `draft` to be covered."""
    complete = list(dict.fromkeys(entries))
    dense, packed = dense_linears(draft), packed_modules(draft)
    family = find_family(draft.config.value)
    if family and family.mtp:
        prefix = family.mtp.prefix
        if any(m.startswith(prefix) for m in dense) and not any(m.startswith(prefix) for m in packed):
            complete += [entry for entry in MTP_ENTRIES if entry not in complete]
    uncovered = [module for module in dense if first_match(complete, module) is None]
    return complete + derive_ignore(uncovered, packed)


def _contradictions(draft: Draft, entries: Sequence[str]) -> Iterator[Problem]:
    """Packed modules that would be ignored, and dense ones that would be built packed."""
    family = find_family(draft.config.value)
    targets = tuple(_targets(draft))
    covered = [(module, entry) for module in packed_modules(draft) if (entry := first_match(entries, module))]
    for folded in fold(covered):
        found = f"is packed, but {folded.state!r} would have engines look for a dense weight"
        yield Problem("ignore-covers-packed", found, CONFIG, folded.pattern, remedy="Narrow the entry")
    open_modules = [m for m in dense_linears(draft) if first_match(entries, m) is None]
    built = [(module, target) for module in open_modules if (target := is_covered(targets, module, family))]
    for folded in fold(built):
        found = f"is dense, but target {folded.state!r} would have engines look for packed weights"
        remedy = "Keep an entry that covers it; `ckpt ignore SRC derive` computes the list"
        yield Problem("ignore-lacks-dense", found, CONFIG, folded.pattern, remedy=remedy)


def _targets(draft: Draft) -> Iterator[str]:
    groups = (current(draft) or {}).get("config_groups")
    for entry in groups.values() if isinstance(groups, dict) else ():
        if isinstance(entry, dict):
            yield from entry.get("targets", [])


def coverage(draft: Draft) -> dict[str, int]:
    """Each entry of the ignore list, and how many modules of the draft it covers, dense or packed."""
    modules = [*dict.fromkeys([*dense_linears(draft), *packed_modules(draft), *map(_owner, draft.tensors)])]
    entries = ignore_list(current(draft) or {})
    return {entry: sum(matches(entry, module) for module in modules) for entry in entries}


def _owner(tensor: str) -> str:
    return split_name(tensor)[0]
