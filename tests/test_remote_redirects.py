"""Where the Hub may send a reader on to: an answer that came without TLS, though TLS was asked for, is not taken."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint import RemoteFile, UnreadableCheckpoint
from checkpoint.remote.faults import transport
from checkpoint.remote.ranges import _refuse_downgrade

FILE = RemoteFile("owner/name", "0" * 40, "model.safetensors", 10)


def answer(*urls: str) -> Any:
    """The answer of the transport that is installed, after it was sent from each of `urls` on to the next."""
    client = transport()
    *hops, last = (client.Response(200, request=client.Request("GET", url)) for url in urls)
    last.history = hops
    return last


@pytest.mark.parametrize(
    "urls",
    [
        ("https://hub/file", "http://hub/file"),
        ("https://hub/file", "http://storage/blob"),
        ("https://hub/file", "https://storage/blob", "http://elsewhere/blob"),
        ("http://hub/file", "https://hub/file", "http://storage/blob"),
    ],
)
def test_an_address_without_tls_behind_one_with_it_is_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(UnreadableCheckpoint, match="without TLS") as error:
        _refuse_downgrade(answer(*urls), FILE)
    assert [problem.code for problem in error.value.problems] == ["hub-answer"]


@pytest.mark.parametrize(
    "urls",
    [
        ("https://hub/file",),
        ("https://hub/file", "https://storage/blob"),
        ("http://127.0.0.1/file",),
        ("http://127.0.0.1/file", "http://localhost/blob"),
        ("http://hub/file", "https://hub/file"),
    ],
)
def test_any_other_way_is_taken(urls: tuple[str, ...]) -> None:
    _refuse_downgrade(answer(*urls), FILE)
