"""The corpus: sound checkpoints, and every way to break one that we know, each with the rule that must tell of it.

`sound.py` builds the checkpoints, the other files break them, one table for each subject; `judging.py` runs `verify`
over the result, `document.py` prints all as `docs/defects.md`.
"""
