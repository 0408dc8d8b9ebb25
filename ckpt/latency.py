"""`ckpt latency`: how long served models take, side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import examples, output_from, output_options
from ckpt.output import Output, table

if TYPE_CHECKING:
    from latency import Candidate, Cell, Difference, Result, Round, Spread

EXAMPLES = examples(
    "ckpt latency http://localhost:8000",
    "ckpt latency --candidate BF16=http://localhost:8000 --candidate INT4=http://localhost:8001 --streams 1,5",
    "ckpt latency http://localhost:8000,small http://localhost:8000,large --prompt-tokens 128,2048 --json",
)

FILE = click.Path(path_type=Path, dir_okay=False)
PLOTS = (".png", ".svg")
FAILED = 3

HEAD = ("candidate", "first token, ms", "whole turn, ms", "ms/token", "tokens/s", "in", "out")
SAID = {
    "first_ms": "first token",
    "whole_ms": "whole turn",
    "token_ms": "ms/token",
    "tokens_per_second": "tokens/s",
}


def numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Callback: whole numbers above 0, between commas."""
    words = [word.strip() for word in value.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,6}", word) for word in words):
        raise click.BadParameter("whole numbers above 0 between commas, as 1,5")
    return tuple(dict.fromkeys(int(word) for word in words))


def picture(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Callback: a file that a plot can be written to."""
    if value is not None and value.suffix.lower() not in PLOTS:
        raise click.BadParameter(f"a file that ends in {' or '.join(PLOTS)}")
    return value


@click.command("latency", epilog=EXAMPLES)
@click.argument("servers", nargs=-1, metavar="URL[,MODEL]...")
@click.option("--candidate", "named", multiple=True, metavar="NAME=URL[,MODEL]", help="A server, under a name.")
@click.option("--streams", callback=numbers, default="1", show_default=True, help="Requests at the same time, as 1,5.")
@click.option(
    "--prompt-tokens", callback=numbers, default="128", show_default=True, help="Prompt lengths, as 128,2048."
)
@click.option("--output-tokens", type=click.IntRange(2), default=128, show_default=True, help="Length of answers.")
@click.option(
    "--prefix",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    show_default=True,
    help="A new prompt for each request, or always the same.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Each asks every candidate once a stream, in an order of its own.",
)
@click.option("--warmup", type=click.IntRange(0), default=2, show_default=True, help="Rounds before, not measured.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Decides prompts and orders.")
@click.option("--chat", is_flag=True, help="Ask by the chat template instead of continuing text.")
@click.option("--api-key-env", metavar="VARIABLE", help="The environment variable that holds the servers' key.")
@click.option("--timeout", type=click.FloatRange(1), default=600, show_default=True, help="Seconds for an answer.")
@click.option("--output", "target", type=FILE, help="File to write the JSON document to, beside what is printed.")
@click.option("--plot", type=FILE, callback=picture, help="A .png or .svg to write.")
@output_options
def command(
    servers: Sequence[str], named: Sequence[str], target: Path | None, plot: Path | None, **options: Any
) -> None:
    """Time to first token, whole turn, ms per token and throughput of servers that speak OpenAI's protocol.

    Candidates are asked in turns, so that what else the machine does meets all alike; what noise alone could explain is
    called noise. Lengths and counts are the servers' own. Acceptance of drafts is read from the engine's metrics.
    """
    output = output_from(options)
    words = [*servers, *named]
    if not words:
        raise click.UsageError("give the address of a server, as http://localhost:8000")
    from checkpoint.wholefile import write_whole
    from latency import Settings, document, measure
    from latency.plot import draw, require_plots

    if plot is not None:
        require_plots()
    candidates = _candidates(servers, named, options.pop("api_key_env"), options.pop("timeout"))
    result = measure(candidates, Settings(**options), output.hint)
    output.result(document(result))
    for cell in result.cells:
        _show(cell, result, output)
    if target is not None:
        write_whole((json.dumps(document(result), indent=2) + "\n").encode(), target, "report-unwritable")
    if plot is not None:
        draw(result, plot)
    if result.failures:
        raise click.exceptions.Exit(FAILED)


def _candidates(servers: Sequence[str], named: Sequence[str], key: str | None, timeout: float) -> list[Candidate]:
    """All candidates, those without a name called by model or address. Raises click.UsageError for a name twice."""
    from latency import Candidate
    from serving import Server

    found = []
    for word in [*servers, *named]:
        name, equals, place = word.partition("=") if word in named else ("", "", word)
        if word in named and not (name and equals):
            raise click.UsageError(f"--candidate {word}: NAME=URL[,MODEL]")
        url, _, model = place.partition(",")
        server = Server(url, model or None, key, timeout=timeout)
        found.append(Candidate(name or (model.rstrip("/").rpartition("/")[2] or server.url), server))
    names = [candidate.name for candidate in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise click.UsageError(f"{', '.join(twice)}: several candidates of that name; name them with --candidate")
    return found


def _show(cell: Cell, result: Result, output: Output) -> None:
    """A cell's table, and what stands out of the noise."""
    from latency import differences

    settings = result.settings
    prompts = f"{cell.prompt_tokens:,} prompt tokens, {settings.prefix} prefix"
    output.line(f"{prompts}; {cell.streams} at a time; medians of {_requests(cell)}, quartiles in brackets")
    rows = [HEAD, *(_row(name, rounds) for name, rounds in cell.rounds.items())]
    for line in table(rows, right=frozenset(range(1, 7))):
        output.line(f"  {line}")
    for name, rounds in cell.rounds.items():
        _show_drafts(name, rounds, output)
    _show_differences(differences(cell, settings.seed), output)
    for failure in cell.failures:
        output.line(f"  {failure.candidate} failed in round {failure.number}: {failure.message}")
    output.line()


def _requests(cell: Cell) -> str:
    counts = sorted({sum(len(done.turns) for done in rounds) for rounds in cell.rounds.values()})
    return f"{' or '.join(map(str, counts))} requests each"


def _row(name: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    from latency import FIGURES, Spread, values

    cells = [_cell(Spread.of(values(rounds, figure))) for figure in FIGURES]
    turns = [turn for done in rounds for turn in done.turns]
    came = Spread.of([turn.prompt_tokens for turn in turns if turn.prompt_tokens is not None])
    went = Spread.of([turn.output_tokens for turn in turns])
    return (name, *cells, *(f"{spread.median:,.0f}" if spread else "-" for spread in (came, went)))


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{_number(spread.median)} [{_number(spread.low)} {_number(spread.high)}]"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _show_drafts(name: str, rounds: Sequence[Round], output: Output) -> None:
    from latency import drafts

    found = drafts(rounds)
    if found is None:
        return
    text = f"  {name}: drafts"
    if found.acceptance is not None:
        text += f" accepted {found.acceptance:.1%}"
    if found.length is not None:
        text += f", {found.length:.2f} tokens a step"
    if found.drafts is None:
        text += ", by the engine's gauges, which look further back than these requests"
    elif len(found.by_position) > 1:
        text += f", by position {' '.join(f'{share:.1%}' for share in found.by_position)}"
    output.line(text)


def _show_differences(found: Sequence[Difference], output: Output) -> None:
    rows: list[tuple[str, ...]] = [
        (
            f"{one.candidate} against {one.against}",
            SAID[one.figure],
            _percent(one.ratio),
            f"[{_percent(one.low)} {_percent(one.high)}]",
            "" if one.verdict == "different" else one.verdict,
        )
        for one in found
    ]
    for line in table(rows, right=frozenset({2})):
        output.line(f"  {line}")


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}%"
