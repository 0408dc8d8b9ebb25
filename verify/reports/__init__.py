"""One report in the forms that people and machines read. Pure: a report and a surveyed checkpoint in, text out.

Everything that stems from the checkpoint is escaped for where it goes: a terminal, XML, HTML, a URI.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from checkpoint import Checkpoint
    from verify.report import Report

Form = Literal["text", "json", "sarif", "junit", "html"]
FORMS: tuple[Form, ...] = get_args(Form)

__all__ = ["FORMS", "Form", "render"]


def render(report: Report, form: Form, checkpoint: Checkpoint, *, verbose: bool = False, strict: bool = False) -> str:
    """The report as one text that ends in a line feed.

    `verbose` concerns `text` alone; `strict` says whether warnings are failures to `junit`.
    """
    if form == "sarif":
        from verify.reports.sarif import sarif

        return json.dumps(sarif(report, checkpoint), indent=2) + "\n"
    if form == "junit":
        from verify.reports.junit import junit

        return junit(report, strict=strict)
    if form == "html":
        from verify.reports.html import page

        return page(report, checkpoint)
    if form == "json":
        return json.dumps(report.document(), indent=2) + "\n"
    from verify.reports.text import brief, full

    return "".join(f"{line.plain}\n" for line in (full if verbose else brief)(report))
