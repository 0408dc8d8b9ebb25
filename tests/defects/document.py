"""`docs/defects.md`, made from the corpus: `python tests/defects/document.py > docs/defects.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from defects.build import Defect
from defects.corpus import CORPUS, SUBJECTS
from defects.judging import outcome
from defects.sound import SOUND
from verify import Finding

HEAD = """\
# Defects

Printed by `python tests/defects/document.py`; a test compares. Each line is one defect, planted in a sound checkpoint
by `tests/defects/`, and what `ckpt verify` says of it. The tests ask that the rule named here finds it, that no other
rule speaks, and that the sound checkpoints give no finding of any kind at all levels, with and without base.

{count} defects in {rules} rules. The sound checkpoints:

{sound}

*Found* is what the finding says is there. *Happens* is its consequence, with the engines that suffer in brackets where
not all do. Further rules in brackets after the rule are those that the same defect breaks, too. What a consequence
rests on is in [rules.md](rules.md); what was seen running and what was only read, in [engines.md](engines.md).
"""

BUILDS = {
    "experts-int4-g32": "Qwen3.5-MoE, routed experts INT4 in groups of 32, those of the MTP head included; the preset",
    "body-int4-g128": "Qwen3.5-MoE, body INT4 in groups of 128 by `Linear`, INT8 head, BF16 MTP head; the preset",
    "gptq-int4-g128": "Qwen3.5-MoE as llm-compressor's `oneshot` writes it: every dense Linear ignored by name",
    "llama-int4-g32": "a dense Llama, every Linear of its layers INT4 in groups of 32",
    "fp8-block": "a Llama in FP8 blocks: a format that is not supported, not broken",
    "awq": "a Llama in AutoAWQ's format: likewise",
    "fp8-dynamic": "a Llama in FP8 by compressed-tensors, activations quantized too: likewise",
}
WIDEST = 160


def document() -> str:
    """The whole document."""
    rules = {finding.rule for defect in CORPUS for finding in outcome(defect).findings}
    sound = "\n".join(f"- `{name}`: {BUILDS[name]}" for name in SOUND)
    head = HEAD.format(count=len(CORPUS), rules=len(rules), sound=sound)
    return head + "".join(_subject(title, table) for title, table in SUBJECTS.items())


def _subject(title: str, defects: Iterable[Defect]) -> str:
    listed = list(defects)
    reported = any(defect.report for defect in listed)
    header = ["checkpoint", "defect", *(["report"] if reported else []), "rule", "found", "happens"]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    lines += [f"| {' | '.join(_cell(cell) for cell in _cells(defect, reported))} |" for defect in listed]
    return f"\n## {title}\n\n" + "\n".join(lines) + "\n"


def _cells(defect: Defect, reported: bool) -> Iterator[str]:
    finding = next(one for one in outcome(defect).findings if one.rule == defect.rule)
    yield f"`{defect.on}`{_condition(defect)}"
    yield defect.name
    if reported:
        yield defect.report
    yield f"{defect.rule} {finding.severity}" + (f" ({', '.join(defect.also)})" if defect.also else "")
    yield finding.found
    yield _happens(finding)


def _condition(defect: Defect) -> str:
    """For whom and how the checkpoint is judged, where it is not by headers for all engines."""
    options = {"engines": "", "tp": "--tp ", "level": "--level ", "schema": "--schema "}
    said = [f"{flag}{_value(defect.options[key])}" for key, flag in options.items() if key in defect.options]
    return f" ({', '.join([*said, *(['--base'] if defect.based else [])])})" if said or defect.based else ""


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _happens(finding: Finding) -> str:
    engines = f" [{' '.join(finding.engines)}]" if finding.engines else ""
    return finding.consequence + engines


def _cell(text: str) -> str:
    shown = text.replace("|", "\\|").replace("\n", "\\n").replace("*", "\\*").replace("<", "&lt;")
    return shown if len(shown) <= 2 * WIDEST else shown[: 2 * WIDEST - 3] + "..."


if __name__ == "__main__":
    print(document(), end="")
