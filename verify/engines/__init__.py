"""How vLLM, SGLang and transformers read a quantized checkpoint: names, fused layers, matching, by version.

One JSON file and one resolver each. `load_engine("vllm@0.24")`, then `resolve(engine, case)` says of every module
whether the engine builds it packed or dense, and by which entry of the config. To add a release, edit the JSON file.
"""

from verify.engines.engine import Engine, Scope, UnknownEngine, View, engine_names, load_engine
from verify.engines.entries import config_groups, group_targets, ignore_entries, target_groups
from verify.engines.resolution import LoadError, Resolution, Resolved
from verify.engines.resolve import MTP_IGNORE, concerned, resolve
from verify.engines.slots import Slot, slots
from verify.engines.transformers import experts_group

__all__ = [
    "MTP_IGNORE",
    "Engine",
    "LoadError",
    "Resolution",
    "Resolved",
    "Scope",
    "Slot",
    "UnknownEngine",
    "View",
    "concerned",
    "config_groups",
    "engine_names",
    "experts_group",
    "group_targets",
    "ignore_entries",
    "load_engine",
    "resolve",
    "slots",
    "target_groups",
]
