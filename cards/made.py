"""How a checkpoint was made: the inputs, commands and operations of its manifest, and what its calibration recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cards.markdown import code, fenced, text
from cards.wording import plural
from checkpoint import escape

LONGEST = 400
"""Characters of an operation's parameters that are shown."""

ROLES = {"source": "", "base": ", as base", "from": ", for tensors taken from it"}


@dataclass(frozen=True)
class Made:
    """`manifest` is the document of a manifest, `statistics` that of a calibrated run; None where there is none."""

    manifest: Mapping[str, Any] | None
    statistics: Mapping[str, Any] | None

    def lines(self) -> list[str]:
        """As Markdown; empty where nothing is known."""
        blocks = []
        if self.manifest:
            blocks += [list(_inputs(self.manifest)), _commands(self.manifest)]
            blocks += [[*_operations(self.manifest), *_verdict(self.manifest)]]
        if self.statistics:
            blocks.append(list(_statistics(self.statistics)))
        kept = [block for block in blocks if block]
        return [line for block in kept for line in (*block, "")][:-1]


def base_place(manifest: Mapping[str, Any]) -> str | None:
    """The repository of the Hub that the manifest's first unquantized input came from; None where it names none."""
    inputs = manifest["inputs"]
    ordered = sorted(inputs, key=lambda one: one["role"] != "base")
    places = (str(one["place"]) for one in ordered if one["role"] != "from" and one["run"] is None)
    found = next((place for place in places if place.startswith("hf://")), None)
    return found.removeprefix("hf://").partition("@")[0] if found else None


def _inputs(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Every input that no run of the history made itself."""
    seen = set()
    for one in manifest["inputs"]:
        if one["run"] is not None:
            continue
        revision = f" at {code(str(one['revision']))}" if one["revision"] else ", revision not known"
        line = f"- from {code(str(one['place']))}{revision}{ROLES.get(one['role'], '')}"
        if line not in seen:
            seen.add(line)
            yield line


def _commands(manifest: Mapping[str, Any]) -> list[str]:
    typed = [_typed(run["command"]) for run in manifest["runs"] if run["command"]]
    untyped = len(manifest["runs"]) - len(typed)
    silent = [f"{plural(untyped, 'run')} from Python left no command; what was done is below."] if untyped else []
    if not typed:
        return silent
    tools = dict.fromkeys(str(run["tool"]["version"]) for run in manifest["runs"] if run["tool"]["version"])
    by = f" of {text('ckpt ' + ', '.join(tools))}" if tools else ""
    said = f"The {'command' if len(typed) == 1 else 'commands, in this order'}{by}, each with `--out FOLDER` besides:"
    lines = [said if len(typed) > 1 else said.replace("each ", ""), "", *fenced(typed, "sh")]
    return [*lines, "", *silent] if silent else lines


def _typed(command: list[str]) -> str:
    words = [escape(str(word)) for word in command]
    return shlex.join(words if words[0] == "ckpt" else ["ckpt", *words])


def _operations(manifest: Mapping[str, Any]) -> Iterator[str]:
    for one in manifest["operations"]:
        said = json.dumps(one["parameters"], ensure_ascii=False) if one["parameters"] else ""
        shown = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
        yield f"- {text(str(one['operation']))}" + (f": {code(shown)}" if shown else "")


def _verdict(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What the manifest records of a judgement, with what was let pass."""
    verdict = manifest.get("verdict")
    if verdict:
        counts = ", ".join(plural(count, str(one)) for one, count in verdict["counts"].items())
        base = f" beside {code(str(verdict['base']))}" if verdict.get("base") else ""
        yield f"- the manifest records: `ckpt verify` at level {text(str(verdict['level']))}{base}: {text(counts)}"
    for one in manifest.get("waivers") or ():
        place = f" at {code(str(one['place']))}" if one.get("place") else ""
        yield f"- let pass: {text(str(one['rule']))}{place}: {text(str(one['reason']))}"


def _statistics(statistics: Mapping[str, Any]) -> Iterator[str]:
    """Calibration in numbers, from the document that `ckpt gptq` leaves."""
    yield f"Calibrated by llm-compressor's GPTQ ({text(str(statistics['title']))}):"
    yield ""
    calibration = statistics["calibration"]
    split = calibration["report"].get("calibration", {})
    if isinstance(split.get("sequences"), int) and isinstance(split.get("tokens"), int):
        yield f"- {plural(split['sequences'], 'sequence')}, {plural(split['tokens'], 'token')}"
    yield f"- token ids have SHA-256 {code(calibration['sha256'])}"
    settings = statistics["settings"]
    order = settings["actorder"] or "none"
    yield f"- dampening {settings['dampening']}, block size {settings['block_size']}, actorder {text(order)}"
    packages = {name: version for name, version in statistics["environment"]["packages"].items() if version}
    yield f"- {text(', '.join(f'{name} {version}' for name, version in packages.items()))}"
    fallbacks = len(statistics["rtn_fallbacks"])
    yield f"- {plural(len(statistics['modules']), 'module')}, {fallbacks:,} of them rounded to nearest instead"
    comparison = statistics["comparison"]
    if comparison and None not in (comparison["all"]["gptq"], comparison["all"]["rtn"]):
        means = comparison["all"]
        yield (
            f"- mean relative error of the outputs on {plural(comparison['sequences'], 'sequence')} held back: "
            f"{means['gptq']:.4f}, by round-to-nearest {means['rtn']:.4f}"
        )
