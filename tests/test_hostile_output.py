"""Names that want to be something else when they are shown: some commands over them; all are tried by
`python -m reliability.hostile`."""

from __future__ import annotations

import pytest

from reliability.fuzzing.target import Wrong
from reliability.hostile.terminal import NAMES, judged, trials
from reliability.hostile.trial import Trial, carried_out

CHOSEN = (
    "ckpt inspect", "ckpt verify as text", "ckpt verify as SARIF", "ckpt verify as JUnit", "ckpt verify as HTML",
    "ckpt manifest show", "ckpt manifest verify", "ckpt card", "ckpt another config", "ckpt run of a recipe",
    "ckpt a command that is none: an escape sequence", "ckpt verify as text, on a terminal", "the hook's output",
    "ckpt diff", "ckpt inspect of two", "ckpt fidelity with wrong prompts", "ckpt fidelity with hostile references",
)  # fmt: skip


@pytest.mark.parametrize("trial", [one for one in trials() if one.name in CHOSEN], ids=lambda trial: trial.name)
def test_names_are_shown_as_they_are(trial: Trial) -> None:
    carried_out(trial)


def test_all_that_was_chosen_is_there() -> None:
    assert set(CHOSEN) <= {trial.name for trial in trials()}


SHOWN = ("markup", "quotes", "Markdown", "rich's markup", "an end of rich's markup", "a percent sign and braces")
"""Names that are text as it stands, on a terminal."""


@pytest.mark.parametrize("how", sorted(set(NAMES) - set(SHOWN)))
def test_a_name_that_is_shown_raw_is_told(how: str) -> None:
    with pytest.raises(Wrong):
        judged(f"found {NAMES[how]}", "text")


@pytest.mark.parametrize("how", SHOWN)
def test_a_name_that_is_text_is_not(how: str) -> None:
    judged(f"found {NAMES[how]}\n\tby a rule\n", "text")


@pytest.mark.parametrize("form, text", [("html", "<p><SCRIPT>"), ("html", "<img src=x>")])
def test_markup_of_a_name_is_told(form: str, text: str) -> None:
    with pytest.raises(Wrong):
        judged(text, form)
