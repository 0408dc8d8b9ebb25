"""A checkpoint's way to the Hub: what is sent, what stays, one commit, and whether what arrived is what was checked.

`ckpt upload` is the caller. huggingface_hub does the transport; it is imported where it is used.
"""
