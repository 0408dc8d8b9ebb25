"""What can be done to a checkpoint: operations from draft to draft, and the arithmetic they need. No file output.

draft = quantize(Draft.of(open_checkpoint(base)), [Group(("Linear",), Scheme(4, 128))])
apply_plan(plan_for(draft, target), target)
"""

from surgery.comparison import Difference, compare_dense
from surgery.devices import packed_by, packer_for
from surgery.fixup import fixup
from surgery.graft import Bound, graft
from surgery.graft_mtp import graft_mtp
from surgery.ignore import add_ignore, derive, remove_ignore, set_ignore
from surgery.int8_head import int8_head
from surgery.lineage import lineage_problems
from surgery.presets import Preset, load_preset, preset_names
from surgery.quantize import quantize
from surgery.recipe import Recipe, build, load_recipe, recipe_names
from surgery.restore_dense import keep_dense, restore_dense
from surgery.restore_files import restore_files
from surgery.scheme import Group, Maths, Scheme

__all__ = [
    "Bound",
    "Difference",
    "Group",
    "Maths",
    "Preset",
    "Recipe",
    "Scheme",
    "add_ignore",
    "build",
    "compare_dense",
    "derive",
    "fixup",
    "graft",
    "graft_mtp",
    "int8_head",
    "keep_dense",
    "lineage_problems",
    "load_preset",
    "load_recipe",
    "packed_by",
    "packer_for",
    "preset_names",
    "quantize",
    "recipe_names",
    "remove_ignore",
    "restore_dense",
    "restore_files",
    "set_ignore",
]
