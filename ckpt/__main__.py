"""`ckpt`, also as `python -m ckpt`: finds the command, and turns every error into words and an exit code.

0 done, or nothing found; 1 verification found errors; 2 wrong usage; 3 input unreadable, refused or failed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

import click

from checkpoint.errors import CkptError, escape

COMMANDS: dict[str, str] = {
    "inspect": "What a checkpoint holds: modules, dtypes, schemes, bytes.",
    "layout": "Print the layout document, for JSON Schemas to judge.",
    "diff": "What one checkpoint holds otherwise than another, and by how much.",
    "verify": "Prove a checkpoint against rules, schemas, engines and its base.",
    "quantize": "Pack selected modules by round-to-nearest, INT4 or INT8.",
    "run": "Make a build from its recipe, in one write.",
    "calibrate": "Turn texts into the token sequences that GPTQ calibrates with.",
    "gptq": "Calibrate a body by llm-compressor's GPTQ and take it back whole.",
    "graft-mtp": "Put the base's multi-token-prediction head back.",
    "graft": "Take tensors from another checkpoint, byte for byte.",
    "int8-head": "Pack lm_head to INT8 as a further config group.",
    "ignore": "Show, edit or derive the config's ignore list.",
    "restore-files": "Put upstream's side files and config.json back.",
    "fixup": "Mend what an exporter leaves undone, in one pass.",
    "manifest": "What a folder was made of, and whether it is still what was written.",
    "card": "Write or refresh the model card: what is stored, why, and what reads it.",
    "fidelity": "How close candidates' answers stay to their base's, and what is noise.",
    "latency": "How long served models take: first token, each token, several streams.",
    "upload": "Send a checkpoint that verifies to the Hub, in one commit.",
    "hook": "Let git push no checkpoint that does not verify.",
}
"""Every command and its one line; a command's own module is imported only when it is called."""

HELPING = ("NoArgsIsHelpError", "MissingParameter")
"""Errors of click in its own words, which may have many lines. The first is not in all its releases."""


class Commands(click.Group):
    """A group that knows its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"ckpt.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            if not close:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, is_asked: _show_version(context) if is_asked else None,
    help="Show the version and exit.",
)
def cli() -> None:
    """Surgery and verification of language-model checkpoints on disk.

    Works on sharded safetensors and their index, never loads the model, and touches only the bytes that change.
    """


def _show_version(context: click.Context) -> None:
    """That of the installed distribution; run from its sources alone, a program has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"ckpt, version {version('ckpt-surgery')}")
    except PackageNotFoundError:
        click.echo("ckpt, not installed: run from its sources")
    context.exit()


def main() -> None:
    """Run the command line and exit."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its warnings show addresses that are signed for one reader
    gc.set_threshold(100_000, 20, 20)  # a checkpoint is a million small objects, none of them garbage
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = cli.main(prog_name="ckpt", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        _show_misuse(error)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt) as stopped:
        print("\nckpt: interrupted; source and target are as they were", file=sys.stderr)
        _show_notes(stopped)
        code = 130
    except CkptError as error:
        _show(error)
        code = 3
    except BrokenPipeError:
        sys.stderr.close()
        code = 141
    sys.exit(code if isinstance(code, int) else 0)


def _show_misuse(error: click.ClickException) -> None:
    """As click shows it, but in one line: it repeats words of the command line."""
    if type(error).__name__ in HELPING:
        error.show()
    else:
        context = error.ctx if isinstance(error, click.UsageError) else None
        click.UsageError(escape(error.format_message()), context).show()


def _show(error: CkptError) -> None:
    """All problems: as JSON on stdout where the command was to print JSON, else as lines on stderr."""
    if "--json" in sys.argv:
        fields = ("code", "file", "tensor", "found", "expected", "remedy")
        problems = [{field: getattr(problem, field) for field in fields} for problem in error.problems]
        document: dict[str, Any] = {"error": error.headline, "problems": problems}
        print(json.dumps(document, indent=2))
        return
    print(f"ckpt: {error.headline}", file=sys.stderr)
    for problem in error.problems:
        print(f"  - {problem}", file=sys.stderr)
    _show_notes(error)


def _show_notes(error: BaseException | None) -> None:
    """What else there is to know, as where a run that was cut off left its work."""
    told: set[int] = set()  # an error can be its own cause
    while error is not None and id(error) not in told:
        told.add(id(error))
        for note in getattr(error, "__notes__", ()):
            print(f"ckpt: {escape(note)}", file=sys.stderr)
        error = error.__cause__ or error.__context__  # a second interrupt stands before the first, which has the note


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
