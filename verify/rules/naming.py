"""What files and tensors are called: stray files, shard numbers, names that no engine can look up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from checkpoint import Problem
from verify.case import Case
from verify.claims import nesting
from verify.gathering import folded, gather
from verify.registry import Hit, rule

STRAY_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx")
NUMBERED = re.compile(r"(?P<stem>.*?)[-.](?P<number>\d+)-of-(?P<total>\d+)\.safetensors")
FORMAT = "pt"


def is_consolidated(file: str | None) -> bool:
    """Is `file` named as Mistral's releases name their weights?"""
    return file is not None and fnmatchcase(file, "consolidated*.safetensors")


@rule(
    "F12",
    "no weights besides the shards",
    severity="warning",
    engines=("vllm",),
    evidence="vllm default_loader.py: consolidated*.safetensors selects the Mistral format",
    remedy="Remove or rename the file",
)
def stray_weights(case: Case) -> Iterable[Hit]:
    for file in (*case.checkpoint.strays, *case.checkpoint.shards):
        if is_consolidated(file):
            yield Hit(file, "weights in Mistral's naming", "vLLM may load these alone", "Remove or rename the file")
    for file in case.checkpoint.side_files:
        if "/" not in file and any(fnmatchcase(file, pattern) for pattern in STRAY_WEIGHTS):
            consequence = "a second set of weights: loaders may prefer it, and scanners of pickles stop at it"
            yield Hit(file, "weights in another format", consequence, "Remove the file", engines=())


@rule(
    "F13",
    "shards say that they are of format pt",
    severity="warning",
    engines=("transformers",),
    evidence="transformers before 5 reads the framework from it",
    remedy="Write the checkpoint anew with any ckpt operation",
    versions="transformers 5.24 loads without it; before 5 it was required",
)
def format_metadata(case: Case) -> Iterable[Hit]:
    shards = case.checkpoint.shards
    stated = {file: (header.metadata or {}).get("format") for file, header in shards.items()}
    wrong = [file for file, found in stated.items() if found != FORMAT]
    consequence, remedy = "older transformers refuse to load it", "Write the checkpoint anew with any ckpt operation"
    if len(wrong) == len(shards) > 1 and not any(stated.values()):
        yield Hit("all shards", "__metadata__ has no format", consequence, remedy, count=len(wrong))
        return
    faults = (
        (f, f"__metadata__.format is {stated[f]!r}" if stated[f] else "__metadata__ has no format") for f in wrong
    )
    yield from gather(faults, consequence=consequence, remedy=remedy)


@rule(
    "F14",
    "the numbers in shard names are complete",
    severity="warning",
    evidence="CoSER#3",
    remedy="Copy or download the missing shards",
)
def shard_numbers(case: Case) -> Iterable[Hit]:
    """Of `x-00001-of-00003`: all of 1 to 3 are listed, and there is one total for `x`."""
    faulty = {problem.file or "" for problem in case.checkpoint.problems if problem.code != "shard-unindexed"}
    found: dict[str, dict[int, set[int]]] = {}
    for file in {*case.checkpoint.shards, *faulty}:
        match = NUMBERED.fullmatch(file)
        if match:
            found.setdefault(match["stem"], {}).setdefault(int(match["total"]), set()).add(int(match["number"]))
    consequence = "looks like a partial upload or a mixture of two; people and tools draw wrong conclusions"
    for stem, totals in found.items():
        for total, numbers in totals.items():
            absent = sorted(set(range(1, total + 1)) - numbers)
            if absent and len(totals) == 1:
                yield Hit(f"{stem}-*-of-{total:05d}", f"no number {_numbers(absent)}", consequence)
        if len(totals) > 1:
            yield Hit(f"{stem}-*", f"numbered of {', of '.join(map(str, sorted(totals)))} at once", consequence)


@rule(
    "F15",
    "names are unambiguous and plain",
    evidence="llm-compressor#2568: KeyError w2_weight_packed",
    remedy="Rename the tensors, or export again",
)
def plain_names(case: Case) -> Iterable[Hit]:
    for problem in case.checkpoint.problems:
        if problem.code in ("duplicate-key", "unsafe-name"):
            yield _twice_or_unsafe(problem)
    names = list(case.checkpoint.tensors)
    odd = ((name, "blanks or control characters in the name") for name in names if not _is_plain(name))
    yield from gather(odd, consequence="no engine looks such a name up")
    known = case.base.tensors if case.base else {}
    news = (name for name in names if name not in known)
    nested = ((name, f"{match[0].strip('.')} nested") for name in news if (match := nesting(name)))
    yield from gather(nested, consequence="no engine has such a module: KeyError, or the weight is left out")


def _twice_or_unsafe(problem: Problem) -> Hit:
    if problem.code == "duplicate-key":
        return Hit(problem.place, "the key occurs twice", "readers disagree on which of the two counts")
    return Hit(problem.place, problem.found, "points outside the folder, or to no file", problem.remedy)


def _is_plain(name: str) -> bool:
    return name.isprintable() and " " not in name and name.strip(".") == name


def _numbers(numbers: list[int]) -> str:
    return folded(str(number) for number in numbers)
