"""What must hold of a checkpoint: rules, engines, reports. Shares the reader with `surgery`, never its arithmetic.

`verify` judges a folder and returns a `Report` of `Finding`s; `RULES` lists what it judges by once `load_rules` ran.
"""

from verify.case import Case
from verify.finding import Finding
from verify.registry import RULES, Hit, Rule, rule
from verify.report import Report
from verify.rules import load_rules
from verify.run import verify

__all__ = ["RULES", "Case", "Finding", "Hit", "Report", "Rule", "load_rules", "rule", "verify"]
