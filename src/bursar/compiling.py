"""How the kernels are compiled, and what happens where they cannot be."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """
    The function as machine code, compiled at its first call and then kept on disk.

    Where no folder can be written (neither ``NUMBA_CACHE_DIR``, nor the
    package's own, nor the user's) each process compiles anew. Without Numba the
    function runs as the Python it is: slowly, with the same results.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder to keep the code in
        return njit(nogil=True)(function)
