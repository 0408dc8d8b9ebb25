"""What big and odd checkpoints cost: memory, open files, and time that must grow no faster than they do.

`python -m reliability.limits` builds them of holes, runs the commands, and writes `results/limits.json`.
"""
