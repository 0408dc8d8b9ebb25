"""What engines do with checkpoints that `ckpt` made, and with broken ones: measured on a GPU. Not shipped.

`small` and `full` make the models, `builds` and `planting` the checkpoints, `run` gives one of them to vLLM, `suite`
many, `servers` measures latency; `page` writes docs/evidence.md from `results/`.
"""
