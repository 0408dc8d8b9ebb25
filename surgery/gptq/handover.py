"""A calibrated build, worked out from recipe and headers before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from checkpoint import Checkpoint, Draft, Problem, Refused
from checkpoint.families import find_family
from checkpoint.folding import fold
from surgery.calibration import Calibration, calibration_of
from surgery.calibration.rendering import tokenizer_files
from surgery.gptq.architecture import class_problems, model_class
from surgery.gptq.environment import Environment, environment_problems
from surgery.gptq.job import Job, Packed
from surgery.gptq.modules import Planned, packed_draft, planned_modules, precision_problems
from surgery.gptq.needs import Needs, disk_problems, memory_problems, needs_of
from surgery.gptq.rows import spelled
from surgery.gptq.settings import ACTORDER, Settings, settings_of
from surgery.gptq.targets import Targets, targets_for
from surgery.gptq.workplace import work_problems
from surgery.int8_head import int8_head
from surgery.quantization_config import current, ignore_list
from surgery.recipe import Recipe

_TEMPLATES = ("chat_template.*", "additional_chat_templates/*")
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Handover:
    """What llm-compressor is to be given, and what it must give back. `layout` is the export as it has to be stored;
    `problems` are those that headers and recipe show."""

    recipe: Recipe
    base: Checkpoint
    settings: Settings
    calibration: Calibration
    layout: Draft
    modules: tuple[Planned, ...]
    targets: Targets
    needs: Needs
    problems: tuple[Problem, ...]

    @property
    def tokens(self) -> int:
        """Tokens to calibrate with, at least."""
        return self.calibration.sequences * self.calibration.min_tokens

    @property
    def advice(self) -> tuple[str, ...]:
        """What makes a run worth little, though nothing forbids it."""
        widest = max((module.columns for module in self.modules), default=0)
        if self.tokens >= widest:
            return ()
        return (
            f"{self.tokens:,} tokens do not determine the Hessian of a module of {widest:,} columns: "
            "on other text GPTQ may be worse than round-to-nearest",
        )

    @property
    def job(self) -> Job:
        """What the process that runs llm-compressor is told."""
        schemes = fold((module.name, module.scheme) for module in self.modules)
        return Job(
            base=str(self.base.folder.absolute()),
            model_class=model_class(self.base.config) or "",
            groups={
                f"group_{number}": {"targets": list(group.targets), "weights": group.scheme.arguments}
                for number, group in enumerate(self.settings.groups)
            },
            ignore=tuple(dict.fromkeys([*self.settings.ignore, *ignore_list(self.layout)])),
            modules=tuple(
                Packed(one.pattern, one.state.bits, one.state.group_size, one.state.symmetric) for one in schemes
            ),
            dampening=self.settings.dampening,
            block_size=self.settings.block_size,
            actorder=ACTORDER[self.settings.actorder],
            sequential_targets=self.targets.entries,
            together=self.targets.together,
            calibrate_all_experts=self.settings.calibrate_all_experts,
            calibration=spelled(self.calibration),
        )


def handover(recipe: Recipe, base: Checkpoint) -> Handover:
    """Work out the build. Raises ValueError for a recipe that has no `gptq` section; Refused, with all else that is
    wrong, for a calibration section that cannot be followed."""
    if recipe.gptq is None or recipe.calibration is None:
        raise ValueError(f"{recipe.name} is not calibrated")
    settings = settings_of(recipe.gptq)
    layout = packed_draft(base, settings)
    modules = planned_modules(layout)
    problems = (
        *layout.problems,
        *precision_problems(modules),
        *_order_problems(settings),
        *class_problems(base.config),
        *_base_problems(base),
        *_head_problems(layout, recipe),
    )
    try:
        calibration = calibration_of(dict(recipe.calibration), recipe.folder / f"{recipe.name}.yaml")
    except Refused as refusal:
        raise Refused([*problems, *refusal.problems]) from refusal
    problems += tuple(_template_problems(base, calibration))
    targets = targets_for(modules, settings) if modules else Targets((), 1, 0)
    needs = needs_of(base, layout, modules, targets, calibration)
    return Handover(recipe, base, settings, calibration, layout, modules, targets, needs, problems)


def preflight(
    build: Handover, found: Environment | None, out: Path | None, work: Path | None, *, comparing: bool = False
) -> list[Problem]:
    """Everything that would stop the run later, or make its result wrong.

    `found` is None where no Python answered; `out` and `work` are where nothing is to be written.
    """
    problems = list(build.problems)
    if out is not None and work is not None:
        problems += [*_place_problems(build.base.folder, out, work), *work_problems(build.job, work)]
        problems += disk_problems(build.needs, out, work)
    problems += memory_problems(build.needs, build.targets, build.settings.memory, found)
    if found is not None:
        problems += environment_problems(found, model_class(build.base.config))
    if comparing and not build.calibration.held_back:
        remedy = "Set calibration.held_back, to 8 say"
        problems.append(
            Problem("held-back-absent", "holds no rows back to compare on", build.recipe.name, remedy=remedy)
        )
    return problems


def _order_problems(settings: Settings) -> Iterator[Problem]:
    # compressed-tensors 0.19 calls it deprecated, and llm-compressor 0.14 raises in the first module
    if settings.actorder == "group":
        found = "actorder group: llm-compressor computes it no more"
        yield Problem("actorder-unsupported", found, expected="weight or none", remedy="weight needs no g_idx either")


def _base_problems(base: Checkpoint) -> Iterator[Problem]:
    family = find_family(base.config)
    layers = family.mtp_layers(base.config) if family else 0
    if family and family.mtp and layers and not any(name.startswith(family.mtp.prefix) for name in base.tensors):
        found = f"no {family.mtp.prefix}* tensor, though the config says {family.mtp.layers_key} {layers}"
        remedy = "Take the release that has the draft head as base"
        yield Problem("mtp-absent", found, str(base.root), remedy=remedy)
    if not tokenizer_files(base.folder):
        yield Problem("tokenizer-absent", "has no tokenizer to calibrate with", str(base.root))


def _template_problems(base: Checkpoint, calibration: Calibration) -> Iterator[Problem]:
    """Conversations without a chat template to render them by."""
    if any(fnmatchcase(name, pattern) for name in base.side_files for pattern in _TEMPLATES):
        return
    config = base.side_files.get("tokenizer_config.json")
    if config is not None and b'"chat_template"' in config.read_bytes():
        return
    talks = [source.name for source in calibration.sources if _is_dialogue(source.path)]
    if talks:
        found, remedy = "has no chat template", f"Add it; {', '.join(talks)} holds conversations"
        yield Problem("template-absent", found, str(base.root), remedy=remedy)


def _is_dialogue(path: Path) -> bool:
    """Does the first line of a JSONL file hold a conversation? What else is wrong with it, reading it tells."""
    if path.suffix.lower() != ".jsonl":
        return False
    with path.open("rb") as file:
        first = file.readline(_LONGEST_LINE)
    return b'"messages"' in first


def _head_problems(layout: Draft, recipe: Recipe) -> tuple[Problem, ...]:
    """Why the head could not become INT8 once the body is packed."""
    if recipe.head is None or layout.problems or current(layout) is None:
        return ()
    return int8_head(layout, scheme=recipe.head.scheme, maths=recipe.head.maths).problems


def _place_problems(base: Path, out: Path, work: Path) -> Iterator[Problem]:
    root = base.resolve()
    for place, what in ((out, "the result"), (work, "the working folder")):
        if place.resolve().is_relative_to(root):
            yield Problem("target-in-source", f"{what} would be inside the base", str(place))
    if out.resolve().is_relative_to(work.resolve()) or work.resolve().is_relative_to(out.resolve()):
        yield Problem("target-in-work", "result and working folder are inside one another", str(out))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        yield Problem("target-exists", "exists", str(out), remedy="Give a new folder to --out")
