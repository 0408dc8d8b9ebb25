"""`python -m reliability.fuzzing [TARGET...] [--work DIR] [--python PYTHON] [--batches N] [--write]`.

Goes on with what is in DIR until every target has had its number of executions, a batch of each in turn, or for N
batches. `--python` is one that has atheris beside the packages of this project. `--write` puts what was tried into
`reliability/results/fuzzing.json`, `--keep` the smallest inputs that reach all that was reached into the corpora.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from reliability.fuzzing.campaign import BATCH, Campaign
from reliability.fuzzing.keeping import keep
from reliability.fuzzing.outcome import write_outcome
from reliability.fuzzing.target import Target
from reliability.fuzzing.targets import targets


def main(words: Sequence[str]) -> None:
    """Fuzz, and say after each batch where it stands."""
    options = _parser().parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(options.work.absolute(), options.python)
    chosen = [targets()[name] for name in options.targets or targets()]
    for target in _batches(campaign, chosen, options.batches):
        tally = campaign.run(target, min(BATCH, target.asked))
        found = f", {len(tally.findings)} findings" if tally.findings else ""
        print(f"{target.name}: {tally.executions:,} of {target.asked:,}, {tally.edges} edges{found}", flush=True)
    if options.keep:
        for target in chosen:
            print(f"{target.name}: {keep(campaign, target)} inputs kept", flush=True)
    if options.write:
        write_outcome(campaign, chosen)


def _batches(campaign: Campaign, chosen: Sequence[Target], limit: int | None) -> Iterator[Target]:
    """The target of each batch: each of those that are not done, in turn."""
    done = 0
    while left := [target for target in chosen if campaign.tally(target).executions < target.asked]:
        for target in left:
            if limit is not None and done >= limit:
                return
            done += 1
            yield target


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzzing", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(targets())}")
    parser.add_argument("--work", type=Path, default=Path(".fuzzing"), help="where corpora and tallies are")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has atheris")
    parser.add_argument("--batches", type=int, help="how many at most")
    parser.add_argument("--keep", action="store_true", help="renew the corpora of the repository")
    parser.add_argument("--write", action="store_true", help="write the result file")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
