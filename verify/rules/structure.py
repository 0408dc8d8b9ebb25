"""Files, headers and the index: what the survey of the folder found to contradict itself, read as rules.

Every safetensors loader fails on the first three; vLLM's names are those of model_loader/weight_utils.py and
default_loader.py, where an index is a filter over files and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from checkpoint import INDEX, Problem
from checkpoint.folder import LONE
from verify.case import Case
from verify.finding import Severity
from verify.gathering import gather
from verify.registry import Hit, rule
from verify.rules.naming import is_consolidated


@dataclass(frozen=True)
class Reading:
    """A rule that is nothing but the survey's problems under some codes."""

    id: str
    title: str
    codes: tuple[str, ...]
    consequence: str
    evidence: str
    remedy: str = ""
    severity: Severity = "error"
    engines: tuple[str, ...] = ()
    versions: str = ""

    def __call__(self, case: Case) -> Iterator[Hit]:
        found: dict[str, list[Problem]] = {}
        for problem in distinct_problems(case):
            if problem.code in self.codes:
                found.setdefault(problem.file or "", []).append(problem)
        for file, mine in found.items():
            yield from self._hits(file, mine)

    def _hits(self, file: str, problems: list[Problem]) -> Iterator[Hit]:
        """Per file: one hit for faults of the file itself, folded ones for its tensors."""
        for problem in problems:
            if problem.tensor is None:
                yield Hit(file, _wording(problem), self.consequence, problem.remedy or self.remedy)
        inside = ((problem.tensor, _wording(problem)) for problem in problems if problem.tensor is not None)
        for hit in gather(inside, consequence=self.consequence, remedy=self.remedy):
            yield replace(hit, place=f"{file}: {hit.place}")


READINGS = (
    Reading(
        "F01",
        "every shard has a valid header",
        ("header-truncated", "header-too-large", "header-invalid", "entry-invalid", "dtype-unknown", "file-unreadable"),
        "no engine can open the file",
        "safetensors: InvalidHeader, HeaderTooLarge",
        "Copy or download the file again",
    ),
    Reading(
        "F02",
        "the tensors of a shard tile its data",
        ("size-mismatch", "overlap", "hole", "truncated", "trailing-bytes"),
        "no engine can open the file",
        "safetensors: MetadataIncompleteBuffer, InvalidOffset; Qwen3-VL#264",
        "Copy or download the file again",
    ),
    Reading(
        "F03",
        "no shard is a git-lfs pointer",
        ("lfs-pointer",),
        "the weights were never fetched; engines report HeaderTooLarge",
        "vllm#29762",
        "Fetch the file: git lfs pull",
    ),
    Reading(
        "F04",
        "every shard that the index names exists",
        ("shard-missing",),
        "vLLM before 0.26 and SGLang before 0.5.17 load uninitialised memory in its place, later ones raise",
        "vllm#34859, vllm#34930",
        "Copy or download the file again",
        versions="vLLM 0.26 and SGLang 0.5.17 are the first to raise",
    ),
    Reading(
        "F05",
        "every shard in the folder is named in the index",
        ("shard-unindexed",),
        "engines skip the file without a word",
        "vllm filter_duplicate_safetensors_files",
        "Remove the file, or restore the index it belongs to",
    ),
    Reading(
        "F06",
        "every tensor of a listed shard is indexed there",
        ("tensor-unindexed",),
        "engines load it all the same, over a tensor of that name elsewhere",
        "vllm#54230",
        "Write the checkpoint anew with any ckpt operation, which drops or indexes it",
    ),
    Reading(
        "F07",
        "every indexed tensor is in the shard named for it",
        ("tensor-absent",),
        "vLLM leaves a quantized model's missing tensor uninitialised, transformers draws random values",
        "vllm default_loader.py; transformers reports MISSING",
        "Restore the shard, or graft the tensors from the base: ckpt graft SRC --from BASE --tensors NAME",
    ),
    Reading(
        "F08",
        "no tensor is stored twice",
        ("tensor-twice",),
        "the last file wins, so stale data may silently replace the right ones",
        "vllm#54230",
        "Remove the stale shard, or write the checkpoint anew with any ckpt operation",
    ),
    Reading(
        "F09",
        "the index and config.json are well formed",
        ("index-missing", "index-invalid", "index-incomplete", "json-invalid", "config-excessive"),
        "transformers raises, or finds no weights",
        "transformers: KeyError 'metadata'",
        "Write the checkpoint anew with any ckpt operation",
    ),
    Reading(
        "F10",
        "total_size is the sum of the tensors' bytes",
        ("total-size",),
        "the Hub and download tools show a wrong size; often the sign of a stale index",
        "Hub display",
        "Write the checkpoint anew with any ckpt operation",
        severity="warning",
    ),
)

TELLING = ("tensor-twice", "tensor-absent", "unsafe-name")
"""Codes that say of a tensor all that "not indexed in this shard" would say."""

FOLLOWS = {"trailing-bytes": ("overlap", "hole"), "truncated": ("overlap", "hole"), "index-missing": ("json-invalid",)}
"""Code -> codes in the same file that it is a mere consequence of."""

for reading in READINGS:
    rule(
        reading.id,
        reading.title,
        severity=reading.severity,
        engines=reading.engines,
        evidence=reading.evidence,
        remedy=reading.remedy,
        versions=reading.versions,
    )(reading)


@rule(
    "F11",
    "not both a lone model.safetensors and an index of others",
    engines=("transformers",),
    evidence="transformers prefers model.safetensors; seen running",
    remedy="Remove model.safetensors, or give it a shard's name in the index",
)
def lone_beside_index(case: Case) -> Iterable[Hit]:
    checkpoint = case.checkpoint
    stray = any(problem.code == "lone-and-index" for problem in checkpoint.problems)
    listed = checkpoint.index is not None and LONE in checkpoint.shards and len(checkpoint.shards) > 1
    if stray or listed:
        found = f"stands beside {INDEX}" + (" with other shards" if listed else ", which does not name it")
        consequence = "transformers loads this file alone: the rest is random, NaN, or an error, from run to run"
        yield Hit(LONE, found, consequence, f"Remove {LONE}, or give it a shard's name in the index")


def distinct_problems(case: Case) -> list[Problem]:
    """The survey's problems without those that only repeat another one, or that F11 and F12 report."""
    problems = case.checkpoint.problems
    codes = {(problem.file, problem.code) for problem in problems}
    told = {problem.tensor for problem in problems if problem.code in TELLING}
    homes = {problem.tensor: problem.file for problem in problems if problem.code == "tensor-unindexed"}

    def repeats(problem: Problem) -> bool:
        if problem.code == "tensor-unindexed":
            return problem.tensor in told
        if problem.code == "shard-unindexed":
            return (problem.file, "lone-and-index") in codes or is_consolidated(problem.file)
        return any((problem.file, cause) in codes for cause in FOLLOWS.get(problem.code, ()))

    return [_moved(problem, homes) for problem in problems if not repeats(problem)]


def _moved(problem: Problem, homes: dict[str | None, str | None]) -> Problem:
    """An absent tensor that lies in another shard says so."""
    if problem.code != "tensor-absent" or problem.tensor not in homes:
        return problem
    return Problem(problem.code, f"{problem.found}; it lies in {homes[problem.tensor]}", problem.file, problem.tensor)


def _wording(problem: Problem) -> str:
    return f"{problem.found}, expected {problem.expected}" if problem.expected else problem.found
