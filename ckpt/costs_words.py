"""The costs of checkpoints as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.costing import Asked
from ckpt.output import Output, table
from ckpt.text import size
from costs import Costs, Decode, Row, chosen, line, parts_of

Rows = list[tuple[str, ...]]

GIB = 2**30
NOT_COUNTED = (
    "memory is what vLLM allocates for weights and rotary tables; KV cache, CUDA graphs, activations and workspace "
    "come on top. Times are lower bounds: the bytes at the memory's full bandwidth, nothing else"
)


def show_costs(one: Costs, asked: Asked, output: Output) -> None:
    """The costs of one checkpoint."""
    output.line(_assumed(one, asked))
    for row in table(_part_rows(one), right=frozenset({1, 2, 3, 4})):
        output.line(row)
    for said in _step_lines(one, asked):
        output.line(said)
    for what, why in one.unjudged.items():
        output.line(f"not judged: {what} ({why})")
    if one.plain:
        output.hint(f"note: {NOT_COUNTED}")


def show_side_by_side(several: Sequence[Costs], asked: Asked, output: Output) -> None:
    """The costs of several checkpoints in one table: each measure in all and by part, and the times."""
    known = next((one for one in several if one.caches), several[0])
    output.line(_assumed(known, asked))
    output.line()
    rows = [("", *(f"{letter}: {_name(one)}" for letter, one in _lettered(several))), *_bytes(several)]
    for row in table(rows + _times(several, asked), right=frozenset(range(1, len(several) + 1))):
        output.line(row)
    for said in _fitted(several, asked):
        output.line(said)
    for letter, one in _lettered(several):
        for what, why in one.unjudged.items():
            output.line(f"{letter}: not judged: {what} ({why})")
    output.hint(f"note: {NOT_COUNTED}")


def _assumed(one: Costs, asked: Asked) -> str:
    serving, kept = one.serving, one.caches
    said = ["costs in vLLM" + (f", of one of {serving.tp} ranks" if serving.tp > 1 else "")]
    said.append(f"{serving.streams} stream{'s' * (serving.streams > 1)}, {serving.context:,} tokens of context")
    if kept:
        said.append(f"KV cache in {kept.kv_dtype}")
        said += [f"states in {kept.state_dtype}"] if kept.state_dtype else []
    if serving.speculative:
        accepted = f"{serving.acceptance:.0%} accepted, so {serving.accepted:.2f} tokens a step"
        said.append(f"{serving.speculative} drafted, {accepted}")
    said.append(f"memory of {asked.bandwidth / 1e12:.3g} TB/s")
    return "; ".join(said)


def _part_rows(one: Costs) -> Rows:
    """Bytes by part: on disk, in the engine, moved in a step."""
    steps = [step for step in (one.plain, one.speculative) if step]
    heads = ("moved a step", "and when drafting")[: len(steps)]
    rows: Rows = [("part", "on disk", "in the engine", *heads)]
    for row in one.rows:
        moved = (_scaled(step.weights().get(row.part.id, 0)) for step in steps)
        rows.append((row.part.name, size(row.disk), _gib(row.memory), *moved))
    if one.tables is not None:
        rows.append(("rotary tables", "", _gib(one.tables), *("" for _ in steps)))
    if steps:
        rows.append(("KV cache", "", "", *(_caches(step, "kv") for step in steps)))
    if steps and one.caches and one.caches.states:
        rows.append(("recurrent states", "", "", *(_caches(step, "state") for step in steps)))
    idle = " (engine: without the MTP head)" if one.draft and not one.serving.speculative else ""
    return [*rows, (f"all{idle}", size(one.disk), _gib(one.memory), *(_scaled(step.step) for step in steps))]


def _step_lines(one: Costs, asked: Asked) -> Iterator[str]:
    for name, step in (("a token", one.plain), ("a token when drafting", one.speculative)):
        if step:
            time = f"{_milliseconds(step.seconds(asked.bandwidth))} at least"
            about = _about(step, asked)
            time += f", about {_milliseconds(about)} with the overhead" if about is not None else ""
            if step.streams > 1:
                time += f", of each stream; at most {step.streams / step.seconds(asked.bandwidth):,.0f} tokens/s of all"
            yield f"{name}: {_scaled(step.token)} moved, {time}"
    asked_for = chosen(one)
    if asked.measured and asked_for:
        implied = asked_for.seconds(1) / asked.measured[0]
        yield f"measured {_milliseconds(asked.measured[0])}: {implied / 1e12:.3g} TB/s, were there nothing else"
    if one.caches:
        state = f", states {_scaled(one.caches.state)}" if one.caches.states else ""
        yield f"a stream keeps: {one.caches.kv_token:,} B of KV cache for each token of context{state}"


def _bytes(several: Sequence[Costs]) -> Rows:
    """On disk, in the engine and moved in a step, in all and by part."""
    steps = [chosen(one) for one in several]
    names = parts_of(several)
    found = [{row.part.id: row for row in one.rows} for one in several]
    rows: Rows = [("on disk", *(size(one.disk) for one in several))]
    rows += _by_part(names, [{part: size(row.disk) for part, row in known.items()} for known in found])
    rows.append(("in the engine", *(_gib(one.memory) for one in several)))
    rows += _by_part(names, [_in_memory(one, known) for one, known in zip(several, found, strict=True)])
    rows.append(("  rotary tables", *(_gib(one.tables) for one in several)))
    rows.append(("moved a step", *(_scaled(step.step) if step else "?" for step in steps)))
    rows += _by_part(names, [_read(step) for step in steps])
    rows.append(("  KV cache", *(_caches(step, "kv") for step in steps)))
    if any(one.caches and one.caches.states for one in several):
        rows.append(("  recurrent states", *(_caches(step, "state") for step in steps)))
    return [*rows, ("moved a token", *(_scaled(step.token) if step else "?" for step in steps))]


def _by_part(names: dict[str, str], cells: Sequence[dict[str, str]]) -> Rows:
    return [
        (f"  {name}", *(one.get(part, "") for one in cells))
        for part, name in names.items()
        if any(part in c for c in cells)
    ]


def _in_memory(one: Costs, known: dict[str, Row]) -> dict[str, str]:
    """What is loaded, by part: the MTP head where it is to draft."""
    idle = () if one.serving.speculative else ("mtp", "mtp_experts")
    return {part: _gib(row.memory) for part, row in known.items() if part not in idle}


def _read(step: Decode | None) -> dict[str, str]:
    return {part: _scaled(nbytes) for part, nbytes in step.weights().items()} if step else {}


def _times(several: Sequence[Costs], asked: Asked) -> Rows:
    """Milliseconds that a stream waits for a token: at least, about, and measured."""
    steps = [chosen(one) for one in several]
    rows: Rows = [("ms a token, at least", *(_bare(step.seconds(asked.bandwidth) if step else None) for step in steps))]
    if asked.overhead is not None:
        about = (_about(step, asked) if step else None for step in steps)
        rows.append(("ms a token, with the overhead", *(_bare(one) for one in about)))
    if asked.measured:
        rows.append(("ms a token, measured", *(_bare(one) for one in asked.measured)))
        moved = [step.seconds(1) / time if step else None for step, time in zip(steps, asked.measured, strict=True)]
        rows.append(("bandwidth which that implies", *(f"{one / 1e12:.2f} TB/s" if one else "?" for one in moved)))
    return rows


def _about(step: Decode, asked: Asked) -> float | None:
    """Seconds a token with the overhead, which comes once a step."""
    return None if asked.overhead is None else step.seconds(asked.bandwidth) + asked.overhead / step.emitted


def _fitted(several: Sequence[Costs], asked: Asked) -> Iterator[str]:
    """The line through bytes and measured times, and how far off it is."""
    if not asked.measured:
        return
    fitted = line(several, asked.measured)
    if fitted is None:
        yield "no line goes through bytes and measured times"
        return
    off = max(abs(one) for one in fitted.residuals)
    how = (
        "two points, through which a line always goes" if len(several) == 2 else f"off by {_milliseconds(off)} at most"
    )
    moved = f"the bytes moved at {fitted.bandwidth / 1e12:.3g} TB/s"
    yield f"measured times are {_milliseconds(fitted.fixed)} and {moved} ({how})"


def _lettered(several: Sequence[Costs]) -> Iterator[tuple[str, Costs]]:
    """A, B, ... Z, then numbers."""
    for number, one in enumerate(several):
        yield chr(ord("A") + number) if number < 26 else str(number + 1), one


def _name(one: Costs) -> str:
    """The last part of a place."""
    return re.split(r"[/\\]", one.place.rstrip("/\\"))[-1] or one.place


def _caches(step: Decode | None, what: str) -> str:
    """What a step reads and writes of the KV cache or of the states."""
    if step is None:
        return "?"
    passes = (one for one in (step.body, step.drafts) if one)
    return _scaled(sum(getattr(one, f"{what}_read") + getattr(one, f"{what}_written") for one in passes))


def _gib(nbytes: int | None) -> str:
    """In binary units, as engines report memory."""
    if nbytes is None:
        return "?"
    if nbytes >= GIB:
        return f"{nbytes / GIB:.2f} GiB"
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB" if nbytes else "0"


def _scaled(nbytes: float) -> str:
    """In MB, so that columns compare; small numbers in kB."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB" if nbytes else "0"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _bare(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.2f}"
