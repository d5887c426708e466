"""Linux system calls that the standard library does not offer, by way of ctypes."""

import ctypes
import os
import signal
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
SIGINFO = 128
"""Bytes of one signal as read from a descriptor; its number comes first, four bytes."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process adopt orphaned descendants from now on."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def close_memory() -> None:
    """
    Keep other processes of the same user from tracing this one, from now on.

    Memory, environment and descriptors below ``/proc`` belong to the superuser, who alone may
    trace this process (``PR_SET_DUMPABLE``). A program that it starts is open to its user again.
    """
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def signal_descriptor(numbers: Iterable[signal.Signals]) -> int:
    """
    Return a descriptor that becomes readable when one of these signals arrives.

    The signals are blocked: no handler runs, and no system call is interrupted.
    One that arrives again before it was read is there once.

    Raises
    ------
    OSError
        When the kernel refuses.
    """
    numbers = list(numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = (ctypes.c_ulong * 16)()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    for number in numbers:
        mask[(number - 1) // bits] |= 1 << ((number - 1) % bits)
    fd = _libc.signalfd(-1, ctypes.byref(mask), os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return int(fd)


def children() -> list[int]:
    """Return the processes whose parent is the calling thread's process, zombies included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        return []
