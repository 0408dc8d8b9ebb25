"""Regular expressions of strangers, held against names of strangers, with Python's own `re` and never for long.

Engines read targets and ignore entries with `re`, so nothing else will do, and `re` can take longer than anyone lives.
What its parse proves to be quick is asked at once, what it bounds is timed, and all else is asked in another process
that can be stopped.
"""

from checkpoint.matching.expression import KnownSlow, Matcher, PatternTooSlow, expression, start_over

__all__ = ["KnownSlow", "Matcher", "PatternTooSlow", "expression", "start_over"]
