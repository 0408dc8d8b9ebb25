"""The options of `ckpt inspect` about costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from checkpoint import Checkpoint
from costs import KV_DTYPES, STATE_DTYPES, Costs, costs

NAMES = frozenset(
    {"tp", "context", "streams", "kv_dtype", "mamba_dtype", "speculative", "acceptance", "text_only", "bandwidth"}
    | {"overhead", "measured"}
)
"""The options about costs."""

F = TypeVar("F", bound=Callable[..., Any])

H200 = "4.8TB/s"
"""Memory bandwidth of an NVIDIA H200, by its data sheet."""


@dataclass(frozen=True)
class Asked:
    """What was asked of the costs. `bandwidth` is in bytes a second, `overhead` in seconds a step, `measured` in those
    a token took."""

    assumptions: Mapping[str, Any]
    bandwidth: float
    overhead: float | None
    measured: tuple[float, ...]

    def of(self, checkpoint: Checkpoint, document: Mapping[str, Any] | None = None) -> Costs:
        """The costs of `checkpoint`, whose layout is `document` if it is known."""
        return costs(checkpoint, document=document, **self.assumptions)


def costs_options(command: F) -> F:
    """Everything that the costs depend on; `asked_from` reads it."""
    options = (
        click.option(
            "--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="Ranks; costs are of one."
        ),
        click.option(
            "--context", type=click.IntRange(0, 10**9), default=1024, show_default=True, help="Tokens in the KV cache."
        ),
        click.option(
            "--streams",
            type=click.IntRange(1, 10**6),
            default=1,
            show_default=True,
            help="Streams that decode at once.",
        ),
        click.option("--kv-dtype", type=click.Choice(KV_DTYPES), default="auto", help="As vLLM's --kv-cache-dtype."),
        click.option(
            "--mamba-dtype",
            type=click.Choice(STATE_DTYPES),
            default="auto",
            help="Of recurrent states, as vLLM's --mamba-ssm-cache-dtype.",
        ),
        click.option("--speculative", type=click.IntRange(1, 64), metavar="K", help="Tokens drafted by the MTP head."),
        click.option(
            "--acceptance", type=click.FloatRange(0, 1), metavar="A", help="Share of drafted tokens that are accepted."
        ),
        click.option("--text-only", is_flag=True, help="Without the vision tower (--limit-mm-per-prompt 0)."),
        click.option(
            "--bandwidth", callback=_bandwidth, default=H200, show_default=True, help="Of the GPU's memory; an H200's."
        ),
        click.option("--overhead", callback=_time, help="Time a step that does not depend on bytes, as 2.4ms."),
        click.option(
            "--measured", callback=_times, multiple=True, metavar="MS", help="Measured time a token, for each SRC."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def costs_given() -> str | None:
    """The first of the options about costs that stands on the command line; None if none does."""
    context = click.get_current_context()
    own = [one for one in context.command.params if isinstance(one, click.Option) and one.name in NAMES]
    given = (one for one in own if context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE)
    return next((one.opts[0] for one in given), None)


def asked_from(options: dict[str, Any], sources: int) -> Asked:
    """Take the options out of a command's keyword arguments. Raises click.UsageError."""
    drafted, acceptance, measured = options.pop("speculative"), options.pop("acceptance"), options.pop("measured")
    if (drafted is None) != (acceptance is None):
        raise click.UsageError("--speculative and --acceptance go together: --speculative 1 --acceptance 0.8")
    if measured and len(measured) != sources:
        raise click.UsageError(f"{len(measured)} times by --measured for {sources} checkpoints; give one for each")
    assumptions = {key: options.pop(key) for key in ("tp", "context", "streams", "kv_dtype", "text_only")}
    assumptions |= {"state_dtype": options.pop("mamba_dtype")}
    assumptions |= {"speculative": drafted or 0, "acceptance": acceptance or 0.0}
    return Asked(assumptions, options.pop("bandwidth"), options.pop("overhead"), measured)


def _bandwidth(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Callback: bytes a second, as 4.8TB/s."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([GT])B/s", value.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter("GB or TB a second, as 4.8TB/s")
    return float(match[1]) * {"G": 1e9, "T": 1e12}[match[2]]


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Callback: milliseconds, as 2.4ms or 2.4, in seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms)?", value.strip())
    if match is None:
        raise click.BadParameter("milliseconds, as 2.4ms")
    return float(match[1]) / 1000


def _times(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[float, ...]:
    """Callback: several such; a token takes some time."""
    found = [_time(context, parameter, one) for one in value]
    if not all(found):
        raise click.BadParameter("milliseconds, more than 0")
    return tuple(one for one in found if one)
