"""Real inputs to run `ckpt` on: a small language model, a small Qwen MoE, a full-size replica, an exporter's damage.

Everything is built on this machine, without a network, by transformers and safetensors and never by `ckpt` itself,
so that what it reads here was written by someone else. `python -m demo.run` tells two stories from end to end.
"""
