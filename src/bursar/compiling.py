"""How the kernels are compiled, and what happens where they cannot be."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from bursar.memory import check_address_space

P = ParamSpec("P")
R = TypeVar("R")


SHARED = Path(__file__).with_name("profile_kernel.py")
"""Kernel that kernels of other folders call."""

PART: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only compiled functions call."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """
    The function as machine code, compiled at its first call and then kept on disk.

    Where no folder can be written (neither ``NUMBA_CACHE_DIR``, nor the
    package's own, nor the user's) each process compiles anew. Without Numba the
    function runs as the Python it is: slowly, with the same results.
    """
    return _compiled(function, {})


def compiled_part(function: Callable[P, R]) -> Callable[P, R]:
    """
    The same for a function that only compiled functions call: no way in from Python.

    Making that way takes a third of the time that compiling takes.
    """
    return _compiled(function, PART)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """
    The same for a part that is called in the innermost loop: put into its callers' code.

    Arrays that are handed to a function are counted in and out, which can take
    longer than the function; but all this makes the callers slow to compile.
    """
    return _compiled(function, {**PART, "forceinline": True})


def _compiled(function: Callable[P, R], options: dict[str, Any]) -> Callable[P, R]:
    check_address_space()
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        dispatcher = cast(Callable[P, R], njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # no folder to keep the code in
        return cast(Callable[P, R], njit(nogil=True, **options)(function))
    _stamp_with_folder(dispatcher)
    return dispatcher


def _stamp_with_folder(dispatcher: Any) -> None:
    """
    Make code kept on disk outdated when a module changes that the function may call.

    Numba looks at the function's own file only; but the machine code of a kernel
    holds that of the kernels it calls from other modules: from its own folder, and from
    :mod:`bursar.profile_kernel`. The stamp stands in the version,
    because Numba compares versions before it unpickles the index, which fails where the index
    names a class that has another name now.
    """
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(file, "_version"):
        folder = Path(dispatcher.py_func.__code__.co_filename).parent
        file._version = (file._version, _stamp(folder), _stamp(SHARED.parent, SHARED.name))


@cache
def _stamp(folder: Path, pattern: str = "*.py") -> tuple[tuple[str, float, int], ...]:
    modules = sorted(folder.glob(pattern))
    return tuple((m.name, s.st_mtime, s.st_size) for m in modules for s in [m.stat()])
