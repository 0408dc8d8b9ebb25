"""What happens to a checkpoint when things go wrong: crashes, bad disks, hostile input, big numbers.

Every harness here writes one file in `results/`, from which `python -m reliability.page` makes docs/reliability.md.
"""
