"""Small real file systems: in memory, in a file behind a loop device, or another view of a folder. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
"""The command that makes each kind of file system in a file."""

LEAST = {"ext4": 32 << 20, "xfs": 320 << 20, "btrfs": 128 << 20}
"""Bytes that each needs, of which nearly none are really used."""


def can_mount() -> bool:
    """May this process mount a file system? Tried once, since root in a container often may not."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "ckpt", "/mnt"], check=False, capture_output=True)
    return done.returncode == 0


def can_make(kind: str) -> bool:
    """Is there what makes a file system of this kind, and does the kernel know it?"""
    known = kind in Path("/proc/filesystems").read_text().split()
    return known and shutil.which(MAKERS[kind][0]) is not None and Path("/dev/loop-control").exists()


@contextmanager
def memory(at: Path, size: int = 64 << 20, inodes: int = 4096) -> Iterator[Path]:
    """A tmpfs that holds `size` bytes and `inodes` files, mounted at the new folder `at`."""
    with _mounted(at, "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes},mode=0755", "ckpt"):
        yield at


def resize(at: Path, size: int, inodes: int = 4096) -> None:
    """Let the tmpfs at `at` hold more or less."""
    _run("mount", "-o", f"remount,size={size},nr_inodes={inodes}", str(at))


@contextmanager
def disk(at: Path, kind: str) -> Iterator[Path]:
    """A file system of one of the `MAKERS` in a sparse file beside `at`, mounted there."""
    image = at.with_name(f"{at.name}.image")
    image.touch()
    os.truncate(image, LEAST[kind])
    _run(*MAKERS[kind], str(image))
    try:
        with _mounted(at, "-o", "loop", str(image)):
            yield at
    finally:
        image.unlink()


@contextmanager
def read_only(folder: Path, at: Path) -> Iterator[Path]:
    """`folder` once more at `at`, where nothing can be written."""
    with _mounted(at, "--bind", str(folder)):
        _run("mount", "-o", "remount,bind,ro", str(at))
        yield at


@contextmanager
def bound(folder: Path, at: Path) -> Iterator[Path]:
    """`folder` once more at `at`."""
    with _mounted(at, "--bind", str(folder)):
        yield at


@contextmanager
def _mounted(at: Path, *arguments: str) -> Iterator[None]:
    at.mkdir(parents=True, exist_ok=True)
    _run("mount", *arguments, str(at))
    try:
        yield
    finally:
        _run("umount", "-l", str(at))
        at.rmdir()


def _run(*command: str) -> None:
    """Raises CalledProcessError, with what the command said."""
    subprocess.run(command, check=True, capture_output=True)
