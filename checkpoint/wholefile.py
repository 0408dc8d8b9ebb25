"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from checkpoint.errors import Problem, WriteFailed


def write_whole(content: bytes, path: Path, code: str) -> None:
    """Put `content` in place of `path` in one step, with the mode that any new file has.

    Raises WriteFailed, its problem called `code`.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise WriteFailed(Problem(code, error.strerror or str(error), str(path))) from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
