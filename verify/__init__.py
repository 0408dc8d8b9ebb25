"""What must hold of a checkpoint: rules, engines, reports. Shares the reader with `surgery`, never its arithmetic.

`verify` judges a folder and returns a `Report` of `Finding`s, `gate` whether it may be published; `RULES` lists what
they judge by once `load_rules` ran.
"""

from verify.case import Case
from verify.finding import Finding
from verify.gate import GateResult, gate
from verify.registry import RULES, Hit, Rule, rule
from verify.report import Report
from verify.rules import load_rules
from verify.run import verify
from verify.waivers import BadWaiver, Waiver, load_waivers

__all__ = [
    "RULES",
    "BadWaiver",
    "Case",
    "Finding",
    "GateResult",
    "Hit",
    "Report",
    "Rule",
    "Waiver",
    "gate",
    "load_rules",
    "load_waivers",
    "rule",
    "verify",
]
