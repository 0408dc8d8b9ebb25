"""Crashes: a real `ckpt` process is stopped at every system call that changes the disk, and the disk is judged.

`python -m reliability.crashes` runs all of it and writes `results/crashes.json`. A tracer (ptrace) counts and strikes;
`kills` and `signals` end the process, `machine` replays what a power failure may leave, on models of a disk and on real
file systems, `together` has two runs want the same folder. Linux on x86-64.
"""
