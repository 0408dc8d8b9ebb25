"""`ckpt upload`: a checkpoint that verifies, to the Hub in one commit, and a look at what arrived."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.options import FOLDER, PLACE, examples, output_from, output_options

if TYPE_CHECKING:
    from checkpoint import Checkpoint
    from verify import GateResult
    from verify.registry import Level
    from verify.reports import Form

FORMS: dict[str, Form] = {".json": "json", ".sarif": "sarif", ".xml": "junit", ".html": "html", ".txt": "text"}
MESSAGE = "Upload a checkpoint with ckpt"

FAILED = 1

EXAMPLES = examples(
    "ckpt upload EXPORT owner/name --dry-run           # what would be sent, changed, deleted",
    "ckpt upload EXPORT owner/name --base BASE         # every tensor is held against the base first",
    "ckpt upload EXPORT owner/name --waivers waivers.yaml --report report.html",
    "ckpt upload EXPORT owner/name --revision int4 --public",
)


def _repo(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Callback: `owner/name`, also as an address."""
    name = value.removeprefix("hf://")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise click.BadParameter("a repository of the Hub as owner/name; a branch is given by --revision")
    return name


def _branch(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Callback: a branch. A commit cannot take another one on top and remain what it is."""
    if re.fullmatch("[0-9a-f]{40}", value):
        raise click.BadParameter("a branch, not a commit")
    return value


def _reports(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> tuple[Path, ...]:
    """Callback: files whose endings name forms of the report."""
    for path in value:
        if path.suffix not in FORMS:
            raise click.BadParameter(f"{path.name}: a file that ends in {', '.join(FORMS)}")
    return value


@click.command("upload", epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.argument("repo", metavar="OWNER/NAME", callback=_repo)
@click.option("--revision", default="main", show_default=True, callback=_branch, help="Branch to commit to.")
@click.option("--private/--public", default=None, help="Who sees a repository that is created (default: private).")
@click.option("--message", default=MESSAGE, show_default=True, help="First line of the commit's message.")
@click.option("--base", type=PLACE, help="The unquantized original that DIR descends from.")
@click.option(
    "--level",
    type=click.Choice(["headers", "sample", "full"]),
    help="How much to read (default: headers, or full where a base is given).",
)
@click.option("--schema", help="A profile's name, or a JSON Schema file for the layout document.")
@click.option("--engine", "engines", multiple=True, metavar="NAME[@VERSION]", help="Judge for this engine; repeatable.")
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option(
    "--waivers", type=click.Path(path_type=Path, dir_okay=False), help="Findings to let pass, each with a reason."
)
@click.option(
    "--report",
    "reports",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    callback=_reports,
    help="File to write the report to, in the form that its ending names; repeatable.",
)
@click.option("--no-report", is_flag=True, help="Leave ckpt.report.json out of the repository.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send nothing.")
@output_options
def command(folder: Path, repo: str, waivers: Path | None, reports: tuple[Path, ...], **options: Any) -> None:
    """Verify DIR, send it to the Hub in one commit, and verify what arrived.

    Nothing is sent where an error stands against it. Exits with 0 where what arrived is what was checked, with 1 where
    an error was found, here or there, with 3 where it could not be read or sent. The token is the one that `hf auth
    login` stored, or HF_TOKEN.
    """
    from ckpt.hub.contents import contents
    from ckpt.hub.telling import refused
    from ckpt.hub.uploading import Asked, Judging, carry_out, require_a_way_out, require_whole

    output, branch, private = output_from(options), options["revision"], options["private"]
    asked = Asked(
        folder, repo, branch, private, options["message"] or MESSAGE, not options["no_report"], options["dry_run"]
    )
    require_a_way_out(asked)
    from checkpoint import open_checkpoint, survey
    from checkpoint.recovery import refuse_busy
    from verify import load_waivers

    refuse_busy(folder)
    consent = load_waivers(waivers) if waivers else ()
    checkpoint = survey(folder)
    published = contents(checkpoint, folder)
    base = open_checkpoint(options["base"]) if options["base"] else None
    engines, strict = options["engines"] or _all_engines(), options["strict"]
    judging = Judging(base, options["schema"], engines, strict, consent, output)
    level: Level = options["level"] or ("full" if base else "headers")
    result = judging.gate(checkpoint, level)
    _write_reports(result, checkpoint, reports, strict)
    if not result.allowed:
        refused(result, asked.repo, output)
        raise click.exceptions.Exit(FAILED)
    require_whole(checkpoint)
    if not carry_out(published, result, judging, asked):
        raise click.exceptions.Exit(FAILED)


def _all_engines() -> tuple[str, ...]:
    from verify.case import ENGINES

    return ENGINES


def _write_reports(result: GateResult, checkpoint: Checkpoint, reports: tuple[Path, ...], strict: bool) -> None:
    from ckpt.showing import Showing, show

    for path in reports:
        show(result.report, checkpoint, Showing(FORMS[path.suffix], path, verbose=True, strict=strict, quiet=True))
