"""Whole small files of a repository, by huggingface_hub, through its cache."""

from __future__ import annotations

from pathlib import Path

from checkpoint.places import RemoteFile
from checkpoint.remote.faults import told
from checkpoint.remote.listing import patiently


def downloaded(file: RemoteFile) -> Path:
    """The file in the Hub cache, downloaded first where it is not there. Raises UnreadableCheckpoint."""
    from huggingface_hub import hf_hub_download

    with told(file):
        return Path(
            patiently(lambda: hf_hub_download(file.repo, file.name, revision=file.commit, library_name="ckpt-surgery"))
        )
