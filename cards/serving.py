"""The blocks of a card about engines: which releases read the checkpoint, and the commands that serve it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cards.engines import Advice, Need
from cards.markdown import cited, fenced, table, text, with_reports
from cards.model import Model
from cards.wording import listing
from verify import Finding

DRAFT_RULES = "M"
"""What begins the ids of rules about the MTP head, without which every engine serves."""

UNSEEN = "A draft head that was not loaded shows in no error, but in an acceptance rate of 0: look at it once."


def engine_lines(model: Model, advice: Sequence[Advice]) -> list[str]:
    """The releases that are needed, and what is unsupported, untested or surprising."""
    if model.unsupported:
        return []
    body = [row for one in advice for row in _needs(one)]
    read = listing([f"{one.title} {one.current}" for one in advice])
    notes = [f"- {one.title}: {note}" for one in advice for note in one.notes]
    ranks = [f"- {cited(text(fact))}" for fact in model.ranks]
    return [
        "### Engines",
        "",
        *table(["Engine", "At least", "For"], body),
        "",
        f"Taken from the source of {read} and from the reports linked; this checkpoint was not served to find them.",
        *([""] if notes or ranks else []),
        *notes,
        *ranks,
    ]


def _needs(one: Advice) -> Iterable[list[str]]:
    if not one.needs:
        yield [one.title, "not known", "which release is the first to read this layout was not determined"]
    for number, need in enumerate(one.needs):
        yield [one.title if number == 0 else "", need.since, _cited(need)]
    if one.advised:
        yield ["", f"better {one.advised.since}", _cited(one.advised)]


def _cited(need: Need) -> str:
    return with_reports(need.what, need.evidence)


def serving_lines(model: Model, advice: Sequence[Advice]) -> list[str]:
    """The commands of each engine, but of none for which the rules find an error."""
    if model.unsupported:
        return []
    lines = ["### Serving", ""]
    for one in advice:
        if one.serve:
            lines += _commands(one, model)
    return [*lines, UNSEEN] if any(one.speculative for one in advice) else lines[:-1]


def _commands(one: Advice, model: Model) -> list[str]:
    errors = list(dict.fromkeys(finding.rule for finding in _errors_for(one.name, model)))
    broken, broken_draft = (
        [rule for rule in errors if rule.startswith(DRAFT_RULES) == draft] for draft in (False, True)
    )
    if broken:
        return [f"{one.title}: no command, since `ckpt verify` finds errors for it ({', '.join(broken)}).", ""]
    lines = [f"{one.title}:", "", *fenced(one.serve, "sh"), ""]
    if broken_draft:
        found = f"`ckpt verify` finds errors in it ({', '.join(broken_draft)})"
        lines += [f"{one.title}: no command with the MTP head as draft, since {found}.", ""]
    elif one.speculative:
        lines += [f"{one.title}, with the MTP head as draft:", "", *fenced(one.speculative, "sh"), ""]
    elif one.withheld:
        lines += [f"{one.title}: no command with the MTP head as draft, for the reason given above.", ""]
    if one.acceptance:
        asked = f"To prove that all weights were loaded ({one.title} {one.acceptance.since} or later):"
        lines += [asked, "", *fenced(one.acceptance.command, "sh"), "", one.acceptance.what, ""]
    return lines


def _errors_for(engine: str, model: Model) -> Iterable[Finding]:
    for finding in model.report.findings:
        concerned = {label.partition("@")[0] for label in finding.engines}
        if finding.severity == "error" and (not concerned or engine in concerned):
            yield finding
