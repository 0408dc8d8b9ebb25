"""The section of a card, line by line: what is stored and why, its sizes, what reads it, how it was made and judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cards.contents import format_lines, part_lines
from cards.engines import Advice, released
from cards.hashes import Hashed
from cards.made import Made
from cards.markdown import code, table, text
from cards.model import Model
from cards.serving import engine_lines, serving_lines
from cards.wording import billions, both_sizes, listing, plural, size
from verify import Finding
from verify.engines import load_engine

EXPLANATION = (
    "<!-- Written by `ckpt card`, which replaces what stands between these two comments; all else is yours. -->"
)
MOST_FINDINGS = 10
"""Findings of one severity that are listed; the others are counted."""

NO_REPO = "OWNER/NAME"
"""What commands serve where no repository was named."""


@dataclass(frozen=True)
class Section:
    """What a section is written from. `base_model` is a name, `version` that of the toolkit."""

    model: Model
    advice: Sequence[Advice]
    files: Sequence[Hashed]
    made: Made | None
    base_model: str | None
    version: str

    def lines(self) -> list[str]:
        """The section without its markers: blocks, each with an empty line after it."""
        blocks = (
            [EXPLANATION],
            part_lines(self.model, self.base_model),
            format_lines(self.model),
            _sizes(self),
            engine_lines(self.model, self.advice),
            serving_lines(self.model, self.advice),
            _making(self.made),
            _verdict(self),
            _files(self.files),
        )
        return [line for block in blocks if block for line in (*block, "")]


def _sizes(section: Section) -> list[str]:
    model = section.model
    sizes, draft = model.sizes, model.draft_sizes
    everything = sum(file.nbytes for file in section.files)
    lines = ["### Size", "", f"- {_total(model)}"]
    if model.active:
        said = f"{model.active.chosen} of {model.active.experts} routed experts"
        if model.active.left_out:
            said += f"; without {listing(model.active.left_out)}"
        lines.append(f"- {billions(model.active.parameters)} active for each token of text ({said})")
    shards = len(model.checkpoint.shards)
    others = plural(len(section.files) - shards, "other file")
    lines.append(f"- on disk {both_sizes(everything)}: {plural(shards, 'shard')} and {others}")
    if model.unsupported:
        return lines
    dtype = model.dtype
    weights, extra = model.costs.weights or 0, model.costs.draft or 0
    stated = f"in {code(dtype)}" if dtype else "as stored"
    packed = f"packed values {size(sizes.codes - draft.codes)}, scales {size(sizes.scales - draft.scales)}, the rest"
    held = f"{both_sizes(weights)}: {packed if sizes.codes else 'all'} {stated}"
    how = "Computed from the tensors' shapes; KV cache, activations and workspace come on top"
    lines.append(f"- weights in vLLM on one GPU {held}. {how}")
    if extra:
        lines.append(f"- with speculative decoding {both_sizes(extra)} more, the MTP head")
    return lines


def _total(model: Model) -> str:
    sizes = model.sizes
    if sizes.unknown:
        return f"over {billions(sizes.parameters)} parameters"
    dense = f"; {both_sizes(2 * sizes.parameters)} at 16 bits each" if "packed" in model.facts else ""
    return f"{billions(sizes.parameters)} parameters ({sizes.parameters:,}){dense}"


def _making(made: Made | None) -> list[str]:
    return ["### How it was made", "", *made.lines()] if made else []


def _verdict(section: Section) -> list[str]:
    found = section.model.report
    engines = listing([_judged(label) for label in found.engines])
    counts = listing([plural(found.counts[one], one) for one in ("error", "warning")])
    lines = [
        "### Checks",
        "",
        f"`ckpt verify` {section.version}, headers and config only, no weights read: {counts}, from "
        f"{plural(len(found.rules), 'rule')} over {plural(found.tensors, 'tensor')}, judged for {engines}.",
    ]
    listed = [line for severity in ("error", "warning") for line in _findings(found.findings, severity)]
    left = [f"- not judged: {text(what)} ({text(why)})" for what, why in found.skipped.items()]
    return [*lines, *([""] if listed or left else []), *listed, *left]


def _judged(label: str) -> str:
    engine = load_engine(label)
    return f"{engine.title} {released(engine.version)}"


def _findings(findings: Iterable[Finding], severity: str) -> list[str]:
    of_kind = [finding for finding in findings if finding.severity == severity]
    lines = [f"- {severity} {one.rule}, {code(one.place)}: {text(one.found)}" for one in of_kind[:MOST_FINDINGS]]
    more = len(of_kind) - len(lines)
    return lines + ([f"- {plural(more, f'further {severity}')}"] if more else [])


def _files(files: Sequence[Hashed]) -> list[str]:
    if not files:
        return []
    body = [
        [code(one.name, in_table=True), f"{one.nbytes:,}", code(one.sha256) if one.sha256 else "not computed"]
        for one in files
    ]
    missing = any(one.sha256 is None for one in files)
    how = ["`sha256sum FILE` computes what is not given here; the Hub shows it on the page of each shard.", ""]
    return [
        "### Files",
        "",
        *(how if missing else []),
        f"<details><summary>{plural(len(files), 'file')} with size and SHA-256</summary>",
        "",
        *table(["File", "Bytes", "SHA-256"], body, right=frozenset({1})),
        "",
        "</details>",
    ]
