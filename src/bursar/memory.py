"""
What happens where a process may not have the memory or the threads that it needs, and a pause of
the search for unreachable cycles.
"""

import contextlib
import errno
import gc
import os
import resource
from collections.abc import Iterator
from functools import cache

from bursar.model.errors import InputError

LEAST = 480 << 20
"""Bytes of address space in which the numeric libraries can be loaded and used, threads aside."""

PER_THREAD = 96 << 20
"""Bytes of address space for each thread of the two OpenBLAS that NumPy and SciPy bring along:
41 MiB each, measured, and some for threads of our own."""

_MOST_THREADS = 64  # that OpenBLAS starts by itself

_NO_MEMORY = frozenset({errno.ENOMEM, errno.EAGAIN})
_WORDS = ("can't start new thread", "failed to map segment", "libllvmlite")


@cache
def check_address_space() -> None:
    """
    Check that the numeric libraries fit into the limit of address space, before they are loaded.

    OpenBLAS waits for ever for memory that it does not get while it is loaded, where nothing can
    interrupt it; others fail by half.

    Raises
    ------
    InputError
        When the limit (``ulimit -v``) is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    threads = _threads()
    needed = LEAST + PER_THREAD * threads
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise InputError(
            f"the limit of address space is {limit >> 20} MiB (ulimit -v {limit >> 10}); "
            f"the numeric libraries need {needed >> 20} MiB with {threads} threads",
            hint="raise it (ulimit -v unlimited), or set OPENBLAS_NUM_THREADS=1",
        )


def is_resource_shortage(error: BaseException) -> bool:
    """Return whether an error says that there was no memory, or no thread or process, to be had."""
    if isinstance(error, OSError) and error.errno in _NO_MEMORY:
        return True
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)


def _threads() -> int:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        said = os.environ.get(name, "")
        if said.isdigit() and int(said) > 0:
            return min(int(said), _MOST_THREADS)
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """
    Look for no unreachable cycles within the block.

    For blocks that make many objects which stay: each time their number has grown by a quarter,
    Python looks at all of them. For 100,000 tasks that took a quarter of the time of a plan.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
