"""How close a candidate's answers stay to its base's, and what a number of prompts can tell of it.

The base answers greedily, or did (`References`); a candidate answers, and says what it gives to the base's tokens.
A `Result` measures both and calls differences within noise what they are. Models run behind a server, or in process.

    references = ask_base(backend, asked.prompts, 256, watch)
    result = Result(asked, references, (ask_candidate("int4", other, references, asked.prompts, watch),))
"""

from fidelity.backend import Backend, Runner, Unscored
from fidelity.document import document
from fidelity.in_process import InProcess, Settings, absent, in_process
from fidelity.judging import Candidate, ask_base, ask_candidate
from fidelity.noise import Difference, Trust, difference
from fidelity.prompts import Prompt, PromptSet, read_prompts, shipped_prompts
from fidelity.references import References, read_references, write_references
from fidelity.replies import Layout, Reply, Source
from fidelity.result import BASE, Column, Compared, Result, gate
from fidelity.served import Address, Served, served
from fidelity.table import MEASURES, Measure

__all__ = [
    "BASE",
    "MEASURES",
    "Address",
    "Backend",
    "Candidate",
    "Column",
    "Compared",
    "Difference",
    "InProcess",
    "Layout",
    "Measure",
    "Prompt",
    "PromptSet",
    "References",
    "Reply",
    "Result",
    "Runner",
    "Served",
    "Settings",
    "Source",
    "Trust",
    "Unscored",
    "absent",
    "ask_base",
    "ask_candidate",
    "difference",
    "document",
    "gate",
    "in_process",
    "read_prompts",
    "read_references",
    "served",
    "shipped_prompts",
    "write_references",
]
