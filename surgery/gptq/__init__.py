"""Calibrated bodies by llm-compressor's GPTQ: handed over whole, and taken back whole.

build = handover(load_recipe("body-int4-g128-gptq"), open_checkpoint(base))
problems = preflight(build, probe(python, model_class), out, work)
export, result = calibrated(build.job, work, python, echo=True)
draft = mended(build, noted(build, export, result), compare_dense(export, build.base))
"""

from surgery.gptq.environment import Environment, HandOffFailed, environment_problems, probe
from surgery.gptq.handover import Handover, handover, preflight
from surgery.gptq.noting import noted
from surgery.gptq.running import calibrated, compared_with_rtn
from surgery.gptq.script import script
from surgery.gptq.settings import Settings, settings_of
from surgery.gptq.statistics import compared, statistics
from surgery.gptq.taking_back import mended, result_problems
from surgery.gptq.targets import Targets, targets_for
from surgery.gptq.workplace import clear, is_finished, work_problems

__all__ = [
    "Environment",
    "HandOffFailed",
    "Handover",
    "Settings",
    "Targets",
    "calibrated",
    "clear",
    "compared",
    "compared_with_rtn",
    "environment_problems",
    "handover",
    "is_finished",
    "mended",
    "noted",
    "preflight",
    "probe",
    "result_problems",
    "script",
    "settings_of",
    "statistics",
    "targets_for",
    "work_problems",
]
