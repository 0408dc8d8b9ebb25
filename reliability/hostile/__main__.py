"""`python -m reliability.hostile [KIND...]`: run the trials and write `reliability/results/hostile.json`.

Of a kind that is not named the row of the last run is kept. Bombs take minutes, all else seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from reliability.hostile import bombs, execution, paths, patterns, served, strangers, terminal
from reliability.hostile.trial import Trial, row
from reliability.rows import Row, save, saved


def bombs_row() -> Row:
    """All bombs in full size, with what the dearest of them took."""
    costs: list[bombs.Cost] = []
    found = row("", bombs.trials(1.0, costs))
    seconds = max(cost.seconds for cost in costs)
    largest = max(costs, key=lambda cost: cost.peak)
    note = (
        f"at most {seconds:.0f} s of processor time; at most {largest.peak / 1e9:.1f} GB of memory, for "
        f"{largest.nbytes / 1e6:.0f} MB of input"
    )
    what = "size, depth, number of entries: bombs of JSON, YAML and JSON Schema"
    return replace(found, what=what, note=note)


def plain(what: str, trials: Callable[[], Iterable[Trial]], note: str) -> Callable[[], Row]:
    return lambda: row(what, trials(), note)


KINDS: Mapping[str, Callable[[], Row]] = {
    "bombs": bombs_row,
    "patterns": plain(
        "regular expressions that take for ever, and usual ones, against 93,000 names",
        patterns.trials,
        "refused by name within seconds, or as `re` says; what its parse bounds is asked here, all else apart",
    ),
    "paths": plain(
        "names and links that lead out, and files that are none, in a folder",
        paths.trials,
        "nothing outside was opened, listed, made or changed, and no pipe or device was waited for",
    ),
    "strangers": plain(
        "the same in a Hub's listing, a tree of git, a recipe, a schema, waivers",
        strangers.trials,
        "what a user names himself (a recipe's base and texts, --schema, --waivers) may lie anywhere, but is a file",
    ),
    "terminal": plain(
        "names as control sequences, lines and markup, in every command and form of output",
        terminal.trials,
        "text, a terminal, JSON, SARIF, JUnit, HTML, a card's Markdown, a hook's output",
    ),
    "execution": plain(
        "code in a folder (pickles, auto_map, modules, hooks, templates), every command over it under an audit hook",
        execution.trials,
        "nothing imported, unpickled or run, nobody connected to; templates are rendered by calibrate and gptq alone, "
        "in transformers' sandbox, which does not limit their time",
    ),
    "servers": plain(
        "a server that is measured or compared: names, errors, redirects, answers without end, under an audit hook",
        served.trials,
        "the key is never shown, nobody else is connected to, and every command ends in the time that an answer has",
    ),
}


def main(words: Sequence[str]) -> None:
    """Run the kinds that are named, or all."""
    before = {one.kind: one for one in saved("hostile")}
    rows = []
    for kind, run in KINDS.items():
        if kind in (words or KINDS):
            found = replace(run(), kind=kind)
            print(f"{kind}: {found.survived} of {found.tried}", *found.findings, sep="\n  ", flush=True)
            rows.append(found)
        elif kind in before:
            rows.append(before[kind])
    save("hostile", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
