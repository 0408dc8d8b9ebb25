"""A repository of the Hub as a checkpoint: documents and side files through huggingface_hub's cache, tensors by range.

huggingface_hub is imported where it is used: who reads a folder does not wait for it.
"""
