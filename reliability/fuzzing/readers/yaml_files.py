"""What people write as YAML: recipes, waivers, and the front matter of a model card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from cards.frontmatter import read_front, with_keys
from cards.markers import Settings, parse_readme
from checkpoint import CkptError, Refused
from reliability.fuzzing.target import Target, expect, place

WAIVERS = """waivers:
  - rule: X04
    place: tokenizer_*.json
    reason: "the base's own"
  - {rule: M01, reason: no draft head wanted}
"""
CARD = """---
license: apache-2.0
base_model: [a/b]   # of whom
tags:
- x
---
# Title

<!-- ckpt:card begin hash repo=a/b -->
text
<!-- ckpt:card end -->
after
"""
YAML_WORDS = (
    "&a",
    "*a",
    "<<:",
    "!!python/object:os.system",
    "!!binary",
    "---",
    "...",
    "|",
    ">-",
    "? ",
    "0x",
    "1:2:3",
    ".inf",
)
PIECES = (
    b"- ",
    b": ",
    b"\n",
    b"  ",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"'",
    b'"',
    b"#",
    b"\t",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"~",
    b"1e9999",
)


def recipe(data: bytes) -> None:
    """Read a recipe as `ckpt run` and `ckpt calibrate` do."""
    from surgery.recipe import load_recipe

    path = place() / "recipe.yaml"
    path.write_bytes(data)
    for read in (load_recipe, _calibration):
        _refused_or_read(read, path)


def _calibration(path: Path) -> object:
    from surgery.calibration.recipe import calibration_of, read_recipe

    return calibration_of(read_recipe(path).get("calibration"), path)


def waivers(data: bytes) -> None:
    """Read a file of waivers."""
    from verify.waivers import load_waivers

    path = place() / "waivers.yaml"
    path.write_bytes(data)
    _refused_or_read(load_waivers, path)


def _refused_or_read(read: Callable[[Path], object], path: Path) -> None:
    try:
        read(path)
    except CkptError as refusal:
        expect(bool(str(refusal)), "a refusal without a word")


def card(data: bytes) -> None:
    """Take a README.md apart and put it together again, with a key and a section more."""
    try:
        text = data.decode()
        readme = parse_readme(text)
        expect(readme.text == text, "a file that was taken apart is not the same")
        made = readme.with_section(["line"], Settings(repo="o/n"))
        expect(parse_readme(made.text).settings.repo == "o/n", "the section is not found again")
        front = read_front(text)
        expect(front.text == text, "front matter that was taken apart is not the same")
        if "added" not in front.values:
            more = with_keys(front, {"added": "x: y", "tags9": ["a", "b"]}, readme.newline)
            expect(read_front(more.text).values == {**front.values, "added": "x: y", "tags9": ["a", "b"]}, "other keys")
    except (UnicodeDecodeError, Refused):
        return


def recipe_seeds() -> Iterator[bytes]:
    from importlib.resources import files

    for name in ("experts-int4-g32", "body-int4-g128", "body-int4-g128-gptq"):
        yield (files("recipes") / f"{name}.yaml").read_bytes()


def waiver_seeds() -> Iterator[bytes]:
    yield WAIVERS.encode()


def card_seeds() -> Iterator[bytes]:
    yield CARD.encode()
    yield b"# no front matter\n"
    yield CARD.replace("\n", "\r\n").encode()


def mutate_text(data: bytes, random: Random) -> bytes:
    """A line repeated, removed or moved, or a piece of YAML put somewhere."""
    lines = data.split(b"\n")
    for _ in range(random.randint(1, 3)):
        number = random.randrange(len(lines))
        match random.randrange(5):
            case 0:
                lines.insert(random.randrange(len(lines) + 1), lines[number])
            case 1 if len(lines) > 1:
                del lines[number]
            case 2:
                lines[number] = random.choice((b"", b"  ", b"    ")) + lines[number].lstrip()
            case _:
                at = random.randint(0, len(lines[number]))
                piece = random.choice((*PIECES, *(word.encode() for word in YAML_WORDS)))
                lines[number] = lines[number][:at] + piece + lines[number][at:]
    return b"\n".join(lines)


TARGETS = (
    Target("recipe", "recipe YAML", recipe, recipe_seeds, mutate_text, YAML_WORDS, longest=6000),
    Target("waivers", "waiver YAML", waivers, waiver_seeds, mutate_text, YAML_WORDS, longest=2048),
    Target(
        "card", "README.md: front matter and markers", card, card_seeds, mutate_text, (*YAML_WORDS, "<!-- ckpt:card")
    ),
)
