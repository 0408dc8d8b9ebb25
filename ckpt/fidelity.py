"""`ckpt fidelity`: how close candidates stay to their base."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import CkptError, Problem, escape
from checkpoint.manifest.whence import folder_name
from ckpt.bars import bars
from ckpt.options import FOLDER, device_name, examples, output_from, output_options
from ckpt.output import Output

if TYPE_CHECKING:
    from fidelity import Backend, Candidate, PromptSet, References, Result

TOO_FAR = 1
FILE = click.Path(path_type=Path, dir_okay=False)
SCHEMES = ("http://", "https://")

EXAMPLES = examples(
    "ckpt fidelity --base BF16 INT4                  # folders, run here by transformers",
    "ckpt fidelity --base http://localhost:8000 http://localhost:8001 --references base.jsonl",
    "ckpt fidelity --references base.jsonl --candidate g32=http://localhost:8001 --candidate g64=http://localhost:8002",
    "ckpt fidelity --base BF16 INT4 --max-nll-increase 0.05   # in CI: exit 1 if it is surely further off",
)


def _arguments(context: click.Context, parameter: click.Parameter, value: str | None) -> Mapping[str, Any]:
    """Callback: a JSON object."""
    try:
        found = json.loads(value or "{}")
    except ValueError as error:
        raise click.BadParameter(f"a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('a JSON object, as {"enable_thinking": false}')
    return found


@click.command("fidelity", epilog=EXAMPLES)
@click.argument("models", nargs=-1, metavar="[DIR|URL[,MODEL]]...")
@click.option("--candidate", "named", multiple=True, metavar="NAME=DIR|URL[,MODEL]", help="A model, under a name.")
@click.option("--base", metavar="DIR|URL[,MODEL]", help="The model that the candidates shall be close to.")
@click.option("--references", type=FILE, help="The base's answers: written with --base, read without.")
@click.option("--prompts", type=FILE, help="JSONL of prompts (default: the thirty that come with the package).")
@click.option("--max-tokens", type=click.IntRange(1), help="Of each answer (default: 256, or as in the references).")
@click.option("--raw", is_flag=True, help="Continue the prompts as texts, without a chat template.")
@click.option("--template-arguments", "arguments", callback=_arguments, metavar="JSON", help="For the chat template.")
@click.option("--tokenizer", type=FOLDER, help="Lay prompts out here, by this folder's template, not by the servers'.")
@click.option("--nll-from", multiple=True, metavar="[NAME=]DIR", help="Have transformers compute NLL for a server.")
@click.option("--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Requests at a time.")
@click.option("--api-key-env", metavar="VARIABLE", help="The environment variable that holds the servers' key.")
@click.option("--timeout", type=click.FloatRange(1), default=600, show_default=True, help="Seconds for an answer.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16", "auto"]), help="Of folders run here.")
@click.option("--threads", type=click.IntRange(1, 256), help="torch's, for folders run here.")
@click.option(
    "--device", callback=device_name, default="cpu", show_default=True, help="Of folders: cpu, cuda or cuda:N."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the bootstrap.")
@click.option("--max-nll-increase", "most", type=float, help="Exit with 1 if the whole interval is above this.")
@output_options
def command(models: Sequence[str], named: Sequence[str], **options: Any) -> None:
    """How close candidates stay to their base: NLL of its greedy answers, matches, form, loops, and what is noise.

    A model is a folder, which transformers runs here, or a server that speaks OpenAI's protocol. Of a server that gives
    no log-probabilities of a given text all is told but NLL; --nll-from names a folder of the same model for that.
    """
    output = output_from(options)
    places = _named(models, named)
    base, file = options.pop("base"), options.pop("references")
    if base is None and file is None:
        raise click.UsageError("give --base, or --references that were written before")
    if not places and (base is None or file is None):
        raise click.UsageError("give a candidate; or --base and --references, to write references alone")
    result = _run(places, base, file, _scorers(options.pop("nll_from"), places), options, output)
    _tell(result, options["most"], file if base is not None else None, output)


def _run(
    places: Mapping[str, str],
    base: str | None,
    file: Path | None,
    scorers: Mapping[str, str],
    options: Mapping[str, Any],
    output: Output,
) -> Result:
    """Base first, then each candidate; of models that run here one is in memory at a time."""
    from fidelity import Result, Trust, ask_candidate, read_prompts, shipped_prompts

    asked = read_prompts(options["prompts"]) if options["prompts"] else shipped_prompts()
    _check((*([base] if base else []), *places.values(), *scorers.values()), options)
    with _watch(output, len(asked.prompts)) as watch:
        references = _references(base, file, asked, options, watch, scorers)
        found: list[Candidate] = []
        for name, place in places.items():
            scorer = _backend(scorers[name], options) if name in scorers else None
            found.append(ask_candidate(name, _backend(place, options), references, asked.prompts, watch, scorer=scorer))
    return Result(asked, references, tuple(found), Trust(seed=options["seed"]))


def _check(places: Sequence[str], options: Mapping[str, Any]) -> None:
    """Before a base is asked for minutes: is each folder a model's, and does each server answer? Raises CkptError."""
    from fidelity import absent

    problems: list[Problem] = []
    for place in dict.fromkeys(places):
        if not place.startswith(SCHEMES):
            problems += filter(None, [absent(Path(place))])
            continue
        try:
            with _backend(place, options)():
                pass
        except CkptError as error:
            problems += error.problems
    if problems:
        raise CkptError(problems, "nothing was asked")


def _references(
    base: str | None,
    file: Path | None,
    asked: PromptSet,
    options: Mapping[str, Any],
    watch: Any,
    scorers: Mapping[str, str],
) -> References:
    from fidelity import ask_base, read_references, write_references
    from fidelity.references import refuse_existing

    if base is None and file is not None:
        references = read_references(file, asked)
        if options["max_tokens"] not in (None, references.max_tokens):
            raise click.UsageError(
                f"{file} has answers of at most {references.max_tokens} tokens; leave out --max-tokens"
            )
        return references
    if file is not None:
        refuse_existing(file)
    scorer = _backend(scorers["base"], options) if "base" in scorers else None
    asking = _backend(str(base), options)
    references = ask_base(asking, asked.prompts, options["max_tokens"] or 256, watch, scorer=scorer)
    if file is not None:
        write_references(references, asked, file)
    return references


def _backend(place: str, options: Mapping[str, Any]) -> Backend:
    """A server by its address, else a folder."""
    from fidelity import Address, Settings, in_process, served

    common = {"raw": options["raw"], "arguments": options["arguments"]}
    if not place.startswith(SCHEMES):
        run = {"device": options["device"], "dtype": options["dtype"], "threads": options["threads"]}
        return partial(in_process, Path(place), Settings(**common, **run))
    url, _, model = place.partition(",")
    asked = {name: options[name] for name in ("api_key_env", "tokenizer", "parallel", "timeout")}
    return partial(served, Address(url, model or None, **common, **asked))


def _named(models: Sequence[str], named: Sequence[str]) -> dict[str, str]:
    """Candidates by name; those without one are called by their model or folder. Raises click.UsageError."""
    pairs = [(_name(place), place) for place in models]
    for word in named:
        name, equals, place = word.partition("=")
        if not (name.strip() and equals and place):
            raise click.UsageError(f"--candidate {word}: NAME=DIR or NAME=URL[,MODEL]")
        pairs.append((name.strip(), place))
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1 or name == "base"})
    if twice:
        raise click.UsageError(f"{', '.join(twice)}: that name is taken; name candidates with --candidate")
    return dict(pairs)


def _name(place: str) -> str:
    if not place.startswith(SCHEMES):
        return folder_name(Path(place))
    url, _, model = place.partition(",")
    return model.rstrip("/").rpartition("/")[2] or url


def _scorers(words: Sequence[str], places: Mapping[str, str]) -> dict[str, str]:
    """Folders that NLL is computed from, by candidate, or `base`. Raises click.UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals:
            if len(places) != 1:
                raise click.UsageError("--nll-from DIR is for one candidate; of several, or the base, say NAME=DIR")
            name, folder = next(iter(places)), word
        if name not in (*places, "base"):
            raise click.UsageError(f"--nll-from {word}: no candidate {name!r}")
        found[name] = folder
    return found


@contextmanager
def _watch(output: Output, total: int) -> Iterator[Any]:
    """A bar of prompts on stderr, where that is a terminal."""
    with bars(output.as_json or output.quiet) as shown:

        def begin(title: str) -> Any:
            if shown is None:
                return lambda count: None
            task = shown.add_task(escape(title), total=total)
            return lambda count: shown.update(task, advance=count)

        yield begin


def _tell(result: Result, most: float | None, written: Path | None, output: Output) -> None:
    """Print it, and exit with 1 where the gate is broken. Raises Refused where it cannot be judged."""
    from ckpt.fidelity_words import show
    from fidelity import document, gate

    judged = None if most is None else gate(result, most)
    output.result(document(result, judged))
    for line in show(result):
        output.line(line)
    if written is not None:
        output.hint(f"references written to {written}")
    if judged is not None:
        for name in judged["broken"]:
            output.line(f"{name}: its NLL is above the base's by more than {most:g}, the whole interval of it")
        if judged["broken"]:
            raise click.exceptions.Exit(TOO_FAR)
