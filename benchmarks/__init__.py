"""How fast `ckpt` is, beside the tools that do the same and beside the bare file system; run as `python -m benchmarks`.

Every case makes its own input, measures ours and the others in turns in one run, proves that what was written is right,
and cleans up. The result is one JSON file; `python -m benchmarks.page` writes docs/performance.md's figures from it.
"""
