"""Markdown that says what was meant on GitHub and the Hub, whatever stands in a name.

Names come from strangers. What is not plainly harmless in one is written as a character reference, which no Markdown
reader takes for syntax: not inside a table's row, nor in HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from checkpoint import escape

_SPECIAL = re.compile(r"[^\w\s.,;:/()+='\"?%#-]|(?<![^\W_])_|_(?![^\W_])|^[+#-]|(?<=:)/(?=/)|(?<=www)\.")
_SPAN = re.compile(r"(?! )[^`]+(?<! )")

REPORTS = {
    "vllm": "vllm-project/vllm",
    "sglang": "sgl-project/sglang",
    "transformers": "huggingface/transformers",
    "compressed-tensors": "vllm-project/compressed-tensors",
    "llm-compressor": "vllm-project/llm-compressor",
    "vllm-mlx": "waybarrios/vllm-mlx",
}
"""Where the reports of a project are, by the short name that evidence gives it."""


def text(words: str) -> str:
    """`words` as running text on one line."""
    return _SPECIAL.sub(_reference, escape(words))


def code(words: str, *, in_table: bool = False) -> str:
    """`words` as code on one line."""
    shown = escape(words)
    if _SPAN.fullmatch(shown) and not (in_table and "|" in shown):
        return f"`{shown}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9]', _reference, shown)}</code>" if shown else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """A table of cells that are Markdown already; the columns in `right` are aligned to the right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def fenced(lines: Iterable[str], language: str) -> list[str]:
    """`lines` as a block of code, in a fence that none of them can close."""
    kept = [escape(line) for line in lines]
    longest = max((len(run) for line in kept for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *kept, fence]


def link(words: str, address: str) -> str:
    """A link; `address` must be one that nobody but us wrote."""
    return f"[{words}]({address})"


def cited(words: str) -> str:
    """`words` of ours, with each public report in them as a link."""
    return re.sub(r"\b[a-z][a-z-]*#\d+", lambda match: report(match[0]), words)


def report(evidence: str) -> str:
    """A public report such as `vllm#37291` as a link to it; as text where its project is none that is known here."""
    project, _, number = evidence.partition("#")
    home = REPORTS.get(project)
    return link(evidence, f"https://github.com/{home}/issues/{number}") if home else text(evidence)


def with_reports(words: str, evidence: Sequence[str]) -> str:
    """`words`, and the reports they rest on in brackets."""
    return words + (f" ({', '.join(map(report, evidence))})" if evidence else "")


def _reference(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"
