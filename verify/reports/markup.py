"""HTML and SVG as text in which nothing that stems from a checkpoint is markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as html_escape

from checkpoint.errors import escape


class Markup(str):
    """Text that is markup already; every other string is escaped on its way into an element."""

    __slots__ = ()


def element(name: str, *children: str | Iterable[str], **attributes: object) -> Markup:
    """An element; `class_` is the attribute class, underscores in names are hyphens, None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_safe(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(_safe(text) for child in children for text in ([child] if isinstance(child, str) else child))
    return Markup(f"<{name}{written}>{inside}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(_safe(part) for part in parts))


def _safe(text: str) -> str:
    return text if isinstance(text, Markup) else html_escape(escape(text), quote=True)
