"""Regular expressions that take for ever, held against 93,000 names, and those that people write, which must not.

Whatever is asked of an expression is what `re.match` says, or it is refused by name in seconds; and no process is left.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from checkpoint import survey
from checkpoint.layout import layout
from checkpoint.matching import PatternTooSlow, expression, start_over
from checkpoint.matching.cost import ways
from checkpoint.matching.expression import LONG, PLAIN, SECONDS, STEPS
from checkpoint.patterns import compiled, first_match
from reliability.fuzzing.ground import LLAMA, written
from reliability.fuzzing.target import expect
from reliability.hostile.trial import Trial

NAMES = [
    f"model.language_model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
    for layer in range(122)
    for expert in range(256)
    for part in ("gate", "up", "down")
][:93_000]
LONG_NAMES = ["a" * 96, "a" * 1024, "model." + "layers.0." * 100 + "x", "1" * 500 + "!"]

ENDLESS = (
    r"(a+)+$",
    r"([a-z]+)*!",
    r"(\w+\.?)+$x",
    r"(\w*)*=",
    r"(.*)*(.*)*(.*)*x",
    r"(a|aa)+$",
    r"(a|a?)+$",
    r"(.*a){20}",
    r"((a+)+)+b",
    r"(?:(?:\w|\.)+)+#",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(x+x+)+y",
    r"(?=(\w+\.?)+#)",
    r"(?!(\w+\.?)+#)x",
    r"(\w+\.?)+(?<=#)",
    r"(?P<a>\w+\.?)+(?P=a)#",
    r"((\w+)\.?\2?)+#",
    r"(?(1)a|(\w+\.?)+#)",
    r"(\w+?\.??)+?#",
    r".*.*.*.*.*.*.*.*.*#",
    r"\w*\w*\w*\w*\w*\w*\w*#",
    r"(?i)([A-Z]+\.?)+#",
    r"(\w{1,99}\.?){1,99}#",
    r"(?:a{0,1000}){0,1000}b",
    r"(?:(?:(?:\w*)*)*)*#",
    r"(.+)+(.+)+#",
    r"([\s\S]*)*\Z#",
    r"(\d*\w*)*#",
    r"(((((\w*)*)*)*)*)*#",
    "(?:" * 40 + r"\w*" + ")*" * 40 + "#",
)
"""All of them go wrong on names of modules, or would if they were longer."""

USUAL = (
    r".*mtp.*",
    r"^mtp.*",
    r".*lm_head$",
    r".*\.mlp\.gate$",
    r".*mlp\.experts\.\d+\.(gate|up|down)_proj$",
    r".*self_attn.*",
    r"model\.layers\.(0|1|2|[3-9]|1[0-9])\..*",
    r".*layers\.\d+\.mlp\.experts\.\d+\..*",
    r".*(visual|vision_tower|vision_model)\..*",
    r"model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj",
    r".*\.linear_attn\..*",
    r".*shared_expert(_gate)?.*",
    r".*in_proj_[ab]$",
    r".*norm.*",
)
"""As they stand in published configs."""

MOMENT = 2.0
"""Seconds that one match may take here before it is watched."""


def trials() -> Iterator[Trial]:
    """All of them."""
    for pattern in ENDLESS:
        yield Trial(f"held against 93,000 names: {pattern[:60]}", _held_trial(pattern))
        yield Trial(f"in a config that is verified: {pattern[:60]}", _verify_trial(pattern))
    for pattern in USUAL:
        yield Trial(f"needs no watching, or says what re says: {pattern}", _usual_trial(pattern))
    yield Trial("what is asked here takes no longer than a moment", _bounded)
    yield Trial("a layout of a checkpoint whose config has one is refused by name", _layout)


def _held_trial(pattern: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        fresh()
        begun = time.monotonic()
        try:
            answers = [bool(expression(pattern).match(name)) for name in (*LONG_NAMES, *NAMES[:2000])]
            match = expression(pattern).match
            answers += [bool(match(name)) for name in NAMES[2000:]]
        except PatternTooSlow as slow:
            expect(pattern[:20] in str(slow).replace("\\\\", "\\"), f"is not named: {slow}")
        else:
            known = re.compile(pattern)
            wrong = [
                name for name, found in zip(NAMES[:50], answers[4:], strict=False) if found != bool(known.match(name))
            ]
            expect(not wrong, f"says otherwise than re of {wrong[:3]}")
        expect(time.monotonic() - begun < 30, f"took {time.monotonic() - begun:.0f} s")

    return run


def fresh() -> None:
    """As at the start of a process, but that slow ones are known."""
    compiled.cache_clear()
    start_over()


def _verify_trial(pattern: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        from verify import verify

        fresh()
        model = written(room / "model", LLAMA)
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"]["ignore"].append(f"re:{pattern}")
        (model / "config.json").write_text(json.dumps(config))
        begun = time.monotonic()
        found = [finding for finding in verify(model).findings if finding.rule in ("C11", "C12")]
        told = " ".join(f"{finding.place} {finding.found}" for finding in found)
        expect(pattern[:20] in told.replace("\\\\", "\\"), f"is not named: {told}")
        expect(time.monotonic() - begun < 30, f"took {time.monotonic() - begun:.0f} s")

    return run


def _usual_trial(pattern: str) -> Callable[[Path], None]:
    def run(room: Path) -> None:
        fresh()
        matcher, known = expression(pattern), re.compile(pattern)
        bound = ways(pattern)
        expect(bound.free <= 1 and bound.fixed <= PLAIN, f"is watched: {bound}")
        expect(all(bool(matcher.match(name)) == bool(known.match(name)) for name in NAMES[:5000]), "says otherwise")
        expect(first_match([f"re:{pattern}"], NAMES[0]) is None or bool(known.match(NAMES[0])), "says otherwise")

    return run


def _bounded(room: Path) -> None:
    """The dearest expressions below the bound, on the names that are worst for them."""
    for free in range(1, 8):
        for part, letter in ((".*a", "a"), (r"\w*\d", "1"), ("a*?a", "a"), ("(?:a|b)*a", "a"), ("[^b]*a", "a")):
            pattern = part * free + "#"
            if ways(pattern).at(LONG) <= STEPS:
                begun = time.monotonic()
                re.compile(pattern).match(letter * LONG)
                expect(time.monotonic() - begun < MOMENT, f"{pattern} took {time.monotonic() - begun:.1f} s")


def _layout(room: Path) -> None:
    fresh()
    pattern = r"(\w+\.?)+$layout"
    model = written(room / "model", LLAMA)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = [f"re:{pattern}"]
    (model / "config.json").write_text(json.dumps(config))
    try:
        layout(survey(model))
    except PatternTooSlow as slow:
        expect("layout" in str(slow), f"is not named: {slow}")
    else:
        expect(False, f"is not refused after {SECONDS} s")
