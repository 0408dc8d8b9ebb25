"""Bytes of files on the Hub, by range requests. What was cut off goes on from where it was cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from threading import Event
from typing import Any

from checkpoint.errors import Problem, UnreadableCheckpoint
from checkpoint.places import RemoteFile
from checkpoint.remote.faults import RETRIED, told, transport, wait_asked

RETRIES = 5
"""Attempts in a row that bring no byte before a read is given up."""

FIRST_WAIT = 0.25
"""Seconds; doubled with each attempt in a row that brings nothing."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SIGNED_OUT = frozenset({401, 403, 404, 410})


class _Again(Exception):
    """Worth another attempt, after `wait` seconds where the server said how long."""

    def __init__(self, found: str, wait: float | None = None) -> None:
        super().__init__(found)
        self.wait = wait


class Ranges:
    """Reads ranges; safe to share between threads.

    Where the Hub sends a reader on to its storage, that address is kept for the file's next ranges: it is signed, so
    it is asked without a token, and asked for anew once it no longer holds.
    """

    def __init__(self) -> None:
        self._direct: dict[RemoteFile, str] = {}
        self._stopped = Event()

    def stop(self) -> None:
        """Have all reads, those under way too, end in an error soon."""
        self._stopped.set()

    def read_into(self, file: RemoteFile, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `file` at `offset`. Raises UnreadableCheckpoint."""
        done = failed = 0
        while done < len(buffer):
            if self._stopped.is_set():
                raise UnreadableCheckpoint(Problem("hub-stopped", "is read no more", str(file)))
            try:
                with told(file):
                    for count in self._stream(file, offset + done, buffer[done:]):
                        done, failed = done + count, 0
            except _Again as again:
                failed += 1
                if failed > RETRIES:
                    problem = Problem("hub-failed", str(again), str(file), remedy="Try again later")
                    raise UnreadableCheckpoint(problem) from None
                self._stopped.wait(min(FIRST_WAIT * 2**failed, 8) if again.wait is None else again.wait)

    def _stream(self, file: RemoteFile, offset: int, buffer: memoryview) -> Iterator[int]:
        """One request; the bytes that each piece of its answer brought into `buffer`."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session

        client = transport()
        wanted = f"bytes={offset}-{offset + len(buffer) - 1}"
        direct = self._direct.get(file)
        headers = {} if direct else build_hf_headers(library_name="ckpt-surgery")
        url = direct or hf_hub_url(file.repo, file.name, revision=file.commit)
        headers |= {"Range": wanted, "Accept-Encoding": "identity"}
        try:
            with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
                self._judge(answer, file, offset, len(buffer), is_stored=bool(direct or answer.history))
                self._learn(answer, file)
                done = 0
                for piece in answer.iter_raw():
                    if self._stopped.is_set():
                        return
                    if done + len(piece) > len(buffer):
                        raise _fault(file, "the Hub sends more than was asked for")
                    buffer[done : done + len(piece)] = piece
                    done += len(piece)
                    yield len(piece)
        except (client.TimeoutException, client.NetworkError, client.RemoteProtocolError) as error:
            raise _Again(f"the connection failed ({type(error).__name__})") from None
        if done < len(buffer):
            raise _Again("the connection ended early")

    def _judge(self, answer: Any, file: RemoteFile, offset: int, nbytes: int, *, is_stored: bool) -> None:
        """Is this the answer to what was asked? Raises _Again where another attempt may bring it, as where the storage
        (`is_stored`) holds our address for no longer signed."""
        from huggingface_hub.utils import hf_raise_for_status

        status = answer.status_code
        if is_stored and status in _SIGNED_OUT:
            self._direct.pop(file, None)
            raise _Again(f"the Hub's storage answers {status}", 0)
        if status in RETRIED:
            raise _Again(f"the Hub answers {status}", wait_asked(answer.headers))
        if status >= 400:
            answer.read()
            hf_raise_for_status(answer)
        _refuse_downgrade(answer, file)
        if status == 200 and (offset, nbytes) == (0, file.size):
            return
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", "")) if status == 206 else None
        if match is None:
            raise _fault(file, f"the Hub answers a range request with {status} and no range")
        if tuple(map(int, match.groups())) != (offset, offset + nbytes - 1, file.size):
            raise _fault(file, f"the Hub sends {match[0]}", f"bytes {offset}-{offset + nbytes - 1}/{file.size}")

    def _learn(self, answer: Any, file: RemoteFile) -> None:
        """Keep the address that the Hub sent us on to. Raises UnreadableCheckpoint if it stores another file there."""
        if not answer.history:
            return
        stated = answer.history[0].headers.get("X-Linked-Etag", "").strip('"')
        if file.sha256 and re.fullmatch("[0-9a-f]{64}", stated) and stated != file.sha256:
            raise _fault(file, f"the Hub now has {stated[:12]}... there", f"{file.sha256[:12]}...")
        hub, storage = answer.history[0].url, answer.url
        if (hub.host, hub.port) != (storage.host, storage.port):  # else it wants a token as the Hub itself does
            self._direct[file] = str(storage)


def _refuse_downgrade(answer: Any, file: RemoteFile) -> None:
    schemes = [hop.url.scheme for hop in (*answer.history, answer)]
    if "https" in schemes and schemes[-1] != "https":
        raise _fault(file, "the Hub redirects to an address without TLS")


def _fault(file: RemoteFile, found: str, expected: str = "") -> UnreadableCheckpoint:
    return UnreadableCheckpoint(Problem("hub-answer", found, str(file), None, expected))
