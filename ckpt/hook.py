"""`ckpt hook`: the gate where git pushes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ckpt.options import FOLDER, examples
from ckpt.output import Output

if TYPE_CHECKING:
    from ckpt.hooks import Git
    from ckpt.hooks.installing import State

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = examples(
    "ckpt hook install                              # in a clone: every push is judged first",
    "ckpt hook install --strict --base /models/base # kept in git's configuration, as ckpt.strict, ckpt.base",
    "ckpt hook install --waivers waivers.yaml       # what may pass, and why, read from each pushed commit",
    "ckpt hook status",
    "ckpt hook run pre-push                         # judge HEAD now, as the hook would",
    "ckpt hook uninstall                            # as it was before",
)


def settings_options(command: F) -> F:
    """How to judge; None and () for what was not given."""
    options = (
        click.option("--level", type=click.Choice(["headers", "sample", "full"]), help="How much of it to read."),
        click.option("--strict/--no-strict", default=None, help="Let warnings refuse, too."),
        click.option(
            "--base", metavar="PLACE", help="The original that it descends from: a folder, or hf://OWNER/NAME."
        ),
        click.option("--engine", multiple=True, metavar="NAME[@VERSION]", help="Judge for this engine; repeatable."),
        click.option("--waivers", metavar="FILE", help="What may pass, and why: a file of the repository."),
        click.option("--fetch/--no-fetch", default=None, help="Let git-lfs fetch what is not here, to judge it."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("hook", epilog=EXAMPLES)
def command() -> None:
    """Let git push no checkpoint that does not verify.

    The hook judges the commits that are pushed, not the working tree: JSON from git, weights from git-lfs's store,
    headers only unless --level asks for more. The tip of each ref counts.
    """


@command.command("install", epilog=EXAMPLES, short_help="Put the pre-push hook into a clone.")
@click.argument("repo", type=FOLDER, default=".")
@settings_options
def install_command(repo: Path, **options: Any) -> None:
    """Put the pre-push hook into the clone REPO, before the hook that may be there.

    Options go into git's configuration; what is not given stays as it is.
    """
    from ckpt.hooks import Git, install, write_settings

    git = Git.at_top(repo)
    _check(options)
    if options["base"] and "://" not in options["base"]:
        options["base"] = str(Path(options["base"]).absolute())
    install(git)
    write_settings(git, **options)
    _print_state(git)


@command.command("uninstall", epilog=EXAMPLES, short_help="Take it out again.")
@click.argument("repo", type=FOLDER, default=".")
def uninstall_command(repo: Path) -> None:
    """Take the hook out of REPO, with its settings; a hook that was there before is back."""
    from ckpt.hooks import Git, uninstall

    before = uninstall(Git.at_top(repo))
    Output().line(f"{'taken out of' if before.installed else 'was not in'} {before.hook}")
    if before.installed and before.kept:
        Output().line("the hook that was there before is back")


@command.command("status", epilog=EXAMPLES, short_help="Say whether it is there, and how it judges.")
@click.argument("repo", type=FOLDER, default=".")
def status_command(repo: Path) -> None:
    """Say whether REPO has the hook, and how it judges."""
    from ckpt.hooks import Git

    _print_state(Git.at_top(repo))


@command.command("run", epilog=EXAMPLES, short_help="Judge as a hook: what is pushed, or committed.")
@click.argument("stage", type=click.Choice(["pre-push", "pre-commit"]))
@click.argument("arguments", nargs=-1, metavar="[REMOTE ADDRESS]")
@settings_options
def run_command(stage: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Judge as a hook: what git says on stdin, what pre-commit says by its variables, else HEAD.

    pre-commit as a stage judges what is about to be committed. Exits with 0 where it may pass, with 1 where something
    stands against it, with 3 where it could not be judged. Options count before git's configuration.
    """
    from ckpt.hooks import Git, judge_index, judge_pushed, read_settings, state
    from ckpt.hooks.target import pushed_by_git, pushed_by_pre_commit
    from ckpt.hooks.telling import tell

    git = Git.at_top()
    _check(options)
    settings = read_settings(git).changed(**options)
    if stage == "pre-commit":
        code = tell(judge_index(git, settings), "commit")
    elif arguments:
        _warn(state(git))
        code = tell(judge_pushed(git, pushed_by_git(sys.stdin.read()), settings, arguments[0]), "push")
    else:
        remote = os.environ.get("PRE_COMMIT_REMOTE_NAME")
        code = tell(judge_pushed(git, [pushed_by_pre_commit()], settings, remote), "push")
    raise click.exceptions.Exit(code)


def _check(options: dict[str, Any]) -> None:
    """Raise UnknownEngine for an engine that is none of ours: better now than when something is to be pushed."""
    if options["engine"]:
        from verify.engines import load_engine

        for engine in options["engine"]:
            load_engine(engine)


def _print_state(git: Git) -> None:
    from ckpt.hooks import read_settings, state

    output, found = Output(), state(git)
    output.line(f"{'installed' if found.installed else 'not installed'}: {found.hook}")
    if found.kept:
        output.line(f"then runs: {found.kept.name}, which was there before")
    for line in read_settings(git).lines():
        output.line(line)
    if found.shared:
        output.hint("core.hooksPath is set: whatever else uses that folder has the hook, too")
    _warn(found)


def _warn(found: State) -> None:
    """Say so where pushes leave the weights behind: git-lfs does not put its hook where another one is."""
    if found.without_lfs:
        way = "ckpt hook uninstall && git lfs update && ckpt hook install" if found.installed else "git lfs update"
        Output().hint(f"git-lfs has no pre-push hook here, so the weights stay on this machine. Mend it: {way}")
