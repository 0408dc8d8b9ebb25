"""`ptrace(2)` and `seccomp(2)` for x86-64 Linux, which Python does not offer."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping

from reliability.crashes.calls import CREATING, FICLONE

GETREGS, SETREGS, CONT, SYSCALL, SEIZE = 12, 13, 7, 24, 0x4206
SECCOMP_STOP, GROUP_STOP = 7, 128
SYSCALL_STOP = 0x80
"""What a stop adds to SIGTRAP where it is one at a system call's end."""

_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
"""Good system call stops; follow forks, vforks, clones, execs; stop at seccomp; die with the tracer."""

_TRACE, _ERRNO, _ALLOW = 0x7FF00000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _SECOND, _THIRD = 0, 24, 32
"""Offsets in `struct seccomp_data`: the call's number, the low halves of two arguments."""

_REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    """`struct user_regs_struct`."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in _REGISTERS]

    @property
    def call(self) -> int:
        return int(self.orig_rax)

    @property
    def result(self) -> int:
        return ctypes.c_longlong(self.rax).value

    def argument(self, number: int) -> int:
        """The argument, as a signed number."""
        return ctypes.c_longlong(getattr(self, ("rdi", "rsi", "rdx", "r10", "r8", "r9")[number])).value


def request(kind: int, task: int, address: int = 0, data: int = 0) -> None:
    """Raises OSError, ProcessLookupError where the task is gone."""
    if _libc.ptrace(kind, task, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def seize(task: int) -> None:
    """Trace `task` and all that it starts."""
    request(SEIZE, task, 0, _OPTIONS)


def registers(task: int) -> Registers:
    found = Registers()
    request(GETREGS, task, 0, ctypes.addressof(found))
    return found


def set_registers(task: int, values: Registers) -> None:
    request(SETREGS, task, 0, ctypes.addressof(values))


def stop_at(numbers: Iterable[int], refused: Mapping[int, int]) -> None:
    """From now on this process stops for its tracer at these calls; those in `refused` fail with their error number."""
    code = b"".join(_program(tuple(numbers), refused))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    if _libc.prctl(38, 1, 0, 0, 0) or _libc.prctl(22, 2, program, 0, 0):  # no new privileges; seccomp by filter
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _program(numbers: tuple[int, ...], refused: Mapping[int, int]) -> Iterable[bytes]:
    """A filter in the language of BPF. Of `openat` those that may write stop alone, of `ioctl` a reflink alone."""
    yield _step(_LOAD, _NUMBER)
    for number, error in refused.items():
        yield _step(_EQUAL, number, 0, 1)
        yield _step(_RETURN, _ERRNO | error)
    for number in numbers:
        if number == 257:
            yield from _only_if(number, _THIRD, _step(_ANY, CREATING, 0, 1))
        elif number == 16:
            yield from _only_if(number, _SECOND, _step(_EQUAL, FICLONE, 0, 1))
        else:
            yield _step(_EQUAL, number, 0, 1)
            yield _step(_RETURN, _TRACE)
    yield _step(_RETURN, _ALLOW)


def _only_if(number: int, argument: int, test: bytes) -> Iterable[bytes]:
    yield _step(_EQUAL, number, 0, 4)
    yield _step(_LOAD, argument)
    yield test
    yield _step(_RETURN, _TRACE)
    yield _step(_RETURN, _ALLOW)


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)
