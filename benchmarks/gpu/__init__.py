"""How fast packing on a GPU is, stage by stage, and that its bits are the reference's: `python -m benchmarks.gpu`.

Every section runs in a process of its own, so that none takes another down. The result is one JSON file of rows.
"""
