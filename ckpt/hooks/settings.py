"""How a clone is judged: in git's own configuration, where it can be seen and changed (`git config ckpt.level`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from checkpoint import CkptError, Problem
from ckpt.hooks.git import Git

if TYPE_CHECKING:
    from verify.registry import Level

LEVELS: tuple[Level, ...] = ("headers", "sample", "full")
SECTION = "ckpt"


class BadSetting(CkptError):
    """A setting that means nothing: what it was to ask for cannot be known."""

    headline = "a setting of this repository cannot be used"


@dataclass(frozen=True)
class Settings:
    """`base` is a folder or an address, `waivers` a file of the repository, read from the commit that is judged."""

    level: Level = "headers"
    strict: bool = False
    base: str | None = None
    engine: tuple[str, ...] = ()
    waivers: str | None = None
    fetch: bool = False

    def changed(self, **options: Any) -> Settings:
        """With the options that were given; those that were not are None, or empty."""
        return replace(self, **{name: value for name, value in options.items() if value not in (None, ())})

    def lines(self) -> list[str]:
        """Each setting as git names it, unless it is at its default."""
        shown = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return [
            f"{SECTION}.{name} {text}" for name, value, default in shown if value != default for text in _texts(value)
        ]


def read_settings(git: Git) -> Settings:
    """What git's configuration says, of the clone, else of the user. Raises BadSetting for all that means nothing."""
    given: dict[str, list[str]] = {}
    for record in (git.line("config", "--null", "--get-regexp", rf"^{SECTION}\.") or "").split("\0"):
        key, _, value = record.partition("\n")
        given.setdefault(key.removeprefix(f"{SECTION}."), []).append(value)
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, read in _READERS.items():
        if name in given:
            try:
                found[name] = read(given[name])
            except ValueError as error:
                problems.append(
                    Problem("setting-invalid", f"is {given[name][-1]!r}", f"{SECTION}.{name}", expected=str(error))
                )
    if problems:
        raise BadSetting(problems)
    return Settings(**found)


def write_settings(git: Git, **options: Any) -> None:
    """Put the options that were given into the clone's configuration."""
    for name, value in options.items():
        if value in (None, ()):
            continue
        git.line("config", "--local", "--unset-all", f"{SECTION}.{name}")
        for text in _texts(value):
            git.run("config", "--local", "--add", f"{SECTION}.{name}", text)


def forget_settings(git: Git) -> None:
    """Take all settings out of the clone's configuration."""
    git.line("config", "--local", "--remove-section", SECTION)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return value if isinstance(value, tuple) else (str(value),)


def _level(values: list[str]) -> Level:
    for level in LEVELS:
        if level == values[-1]:
            return level
    raise ValueError(", ".join(LEVELS))


def _flag(values: list[str]) -> bool:
    """As git reads a truth value; a key without one is true."""
    word = values[-1].lower()
    if word in ("", "true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError("true or false")


_READERS: dict[str, Callable[[list[str]], Any]] = {
    "level": _level,
    "strict": _flag,
    "base": lambda values: values[-1] or None,
    "engine": tuple,
    "waivers": lambda values: values[-1] or None,
    "fetch": _flag,
}
