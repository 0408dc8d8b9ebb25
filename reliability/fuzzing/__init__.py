"""Coverage-guided fuzzing of every reader of what others wrote; run as `python -m reliability.fuzzing`.

A target is a function of bytes that raises whatever a user would have seen as a crash. atheris finds the bytes; those
that once did harm stay in `corpus/`, and the tests hold them against the readers without atheris.
"""
