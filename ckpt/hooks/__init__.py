"""Keeping wrong checkpoints off the Hub where git brings them there: what is pushed or committed is judged first.

`judge_pushed` and `judge_index` are what hooks call; `install`, `uninstall` and `state` put the hook into a clone.
Git is asked for trees and objects and never for the working tree: what is judged is what the Hub would get.
"""

from ckpt.hooks.git import Git, GitFailed
from ckpt.hooks.installing import install, state, uninstall
from ckpt.hooks.judging import judge_index, judge_pushed
from ckpt.hooks.settings import Settings, read_settings, write_settings

__all__ = [
    "Git",
    "GitFailed",
    "Settings",
    "install",
    "judge_index",
    "judge_pushed",
    "read_settings",
    "state",
    "uninstall",
    "write_settings",
]
