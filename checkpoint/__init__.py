"""What a checkpoint is: reading one, drafting another, and writing the draft.

Knows no operation and no rule. `open_checkpoint` reads headers only; a `Draft` says what a new checkpoint shall hold;
`plan_for` turns it into work; `apply_plan` does all the input and output in one pass.
"""

from checkpoint.apply import Written, apply_plan, default_memory, default_workers, examine, plan_for
from checkpoint.digest import Digest
from checkpoint.document import Document
from checkpoint.draft import Computed, Draft, Source, Work
from checkpoint.errors import CkptError, MissingExtra, Problem, Refused, UnreadableCheckpoint, WriteFailed, escape
from checkpoint.files import Files
from checkpoint.folder import CONFIG, INDEX, Checkpoint, open_checkpoint, survey
from checkpoint.header import Header, TensorRef, encode_header, parse_header, read_header
from checkpoint.modules import Module, group_modules, split_name
from checkpoint.places import Address, File, Place, RemoteFile, Repo, Root
from checkpoint.plan import Plan, ShardPlan, make_plan

__all__ = [
    "CONFIG",
    "INDEX",
    "Address",
    "Checkpoint",
    "CkptError",
    "Computed",
    "Digest",
    "Document",
    "Draft",
    "File",
    "Files",
    "Header",
    "MissingExtra",
    "Module",
    "Place",
    "Plan",
    "Problem",
    "Refused",
    "RemoteFile",
    "Repo",
    "Root",
    "ShardPlan",
    "Source",
    "TensorRef",
    "UnreadableCheckpoint",
    "Work",
    "WriteFailed",
    "Written",
    "apply_plan",
    "default_memory",
    "default_workers",
    "encode_header",
    "escape",
    "examine",
    "group_modules",
    "make_plan",
    "open_checkpoint",
    "parse_header",
    "plan_for",
    "read_header",
    "split_name",
    "survey",
]
