"""Print the rules as the document `docs/rules.md`: `python -m verify.rules > docs/rules.md`."""

from __future__ import annotations

from collections.abc import Iterator

from verify.registry import RULES, Rule
from verify.rules import load_rules

SUBJECTS = {
    "F": "Files, index and names",
    "I": "Inventory",
    "T": "Packed modules",
    "C": "quantization_config",
    "M": "MTP head",
    "L": "Output head",
    "O": "Seen in running engines",
    "X": "Side files and the model's config",
    "N": "Contents",
    "S": "Schemas",
}
COSTS = {
    "headers": "headers",
    "config": "headers and config.json",
    "content": "contents, at `--level sample` or `full`",
}
ALL = "all"

HEAD = """\
# Rules

Printed by `python -m verify.rules`; a test compares. A rule finds, it does not raise: each finding names the place,
what is there, what happens in which engine, and what mends it. A finding may weigh less than its rule, or more, where
only some engines or releases suffer; the finding says so. `verify(folder, only=["C"])` runs rules by what their ids
begin with.

Ids are stable. *Engines* are those that suffer; `all` where the file or the weights are wrong for any reader, or
where each finding names them. A rule that concerns none of the engines asked for with `--engine` is silent. `base`
marks rules that need `--base`.

Where one defect breaks several contracts, the rule that names the cause reports it. Which one that is, and what it
says, is shown for each defect of the corpus in [defects.md](defects.md).
"""


def document() -> str:
    """The whole document."""
    load_rules()
    return HEAD + "".join(_subject(letter, title) for letter, title in SUBJECTS.items())


def _subject(letter: str, title: str) -> str:
    rules = [RULES[id] for id in sorted(RULES) if id.startswith(letter)]
    lines = ["| id | holds | severity | reads | engines | evidence, releases | mended by |", "| --- " * 7 + "|"]
    return f"\n## {title}\n\n" + "\n".join([*lines, *map(_line, rules)]) + "\n"


def _line(rule: Rule) -> str:
    reads = COSTS[rule.cost] + (", base" if rule.needs_base else "")
    engines = ", ".join(rule.engines) or ALL
    cells = (rule.id, rule.title, rule.severity, reads, engines, "; ".join(_reasons(rule)), _command(rule.remedy))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _reasons(rule: Rule) -> Iterator[str]:
    yield rule.evidence
    if rule.versions:
        yield rule.versions


def _command(remedy: str) -> str:
    return f"`{remedy}`" if remedy.startswith("ckpt ") and ", or" not in remedy else remedy


if __name__ == "__main__":
    print(document(), end="")
