"""Input that wants to do harm: to the reader's time and memory, to other files, to a terminal, by being run.

Run as `python -m reliability.hostile`, which writes `results/hostile.json`. A trial builds something hostile, does with
it what a user would, and raises where harm was done; the tests run the short ones.
"""
