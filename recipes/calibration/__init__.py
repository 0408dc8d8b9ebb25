"""Texts to calibrate with that come with the package: `dialogue.jsonl` and `general.jsonl`, see README.md."""
