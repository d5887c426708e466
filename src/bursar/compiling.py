"""
How the kernels run: as plain Python while questions are small, as machine code otherwise.

To load Numba and code that was compiled before takes longer than most first plans take in plain
Python, and to compile takes seconds. So a kernel is plain until it has used :data:`PLAIN_SECONDS`
of this process, together with all others, or is given large arrays. Both ways run the same source
and give the same results.

Code that is not on disk is then compiled by a process in the background, and the kernel stays plain
until that has ended, or until plain kernels have taken as long as compiling does: whoever waits for
the compiler only then has lost at most as much again. The process outlives a command that ends
sooner, so that the next command finds the code.
"""

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast

import numpy as np

from bursar.locking import take_lock
from bursar.memory import check_address_space

if TYPE_CHECKING:
    import subprocess

P = ParamSpec("P")
R = TypeVar("R")


SHARED = Path(__file__).with_name("profile_kernel.py")
"""Kernel that kernels of other folders call."""

PART: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only compiled functions call."""

SMALL = 4096
"""Elements of all arrays of a call, at most, for which the call may run as plain Python."""

LARGE = 65_536
"""Such elements, at most, for which the call may run as plain Python while code is compiled."""

PLAIN_SECONDS = 0.25
"""Seconds that this process spends in plain kernels before they are compiled."""

PATIENCE = 10.0
"""Seconds that this process spends in plain kernels while code is compiled in the background."""

_lock = threading.RLock()  # while kernels are made; what they call is made within

_compiler: "subprocess.Popen[bytes] | None" = None
"""Process that compiles a kernel in the background, or did so last."""

_spent = 0.0
"""Seconds that this process has spent in plain kernels."""


class Kernel(Generic[P, R]):
    """
    A function of numbers and arrays that can be compiled.

    Parameters
    ----------
    function
        The function; it may call other kernels by names of its module (not ``module.kernel``).
    options
        Options of Numba.
    """

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        check_address_space()
        update_wrapper(self, function)
        assert isinstance(function, FunctionType)
        self.py_func: FunctionType = function
        self._options = options
        self._compiled: Callable[P, R] | None = None
        self._plain: Callable[P, R] | None = None
        self._awaited: subprocess.Popen[bytes] | None = None  # compiles this or another kernel
        self._tried: set[object] = set()  # types for which such a process compiled this kernel
        # As they are made: functions may call each other in a circle.
        self._making: dict[str, Callable[P, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function, plain or compiled."""
        compiled = self._compiled
        if compiled is not None:
            return compiled(*args, **kwargs)
        size = _elements(args)
        if (size <= SMALL and _spent < PLAIN_SECONDS) or (
            size <= LARGE and _spent < PATIENCE and self._waits_for_code(args, kwargs)
        ):
            return _timed(self.plain, *args, **kwargs)
        return self.compiled(*args, **kwargs)

    def _waits_for_code(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
        """
        Whether the function is being compiled in the background for arguments of these types.

        It is not where the code is on disk, where no code can be kept there, and without Numba.
        """
        global _compiler
        if self._awaited is not None and self._awaited.poll() is None:
            return True
        if kwargs or find_spec("numba") is None:
            return False
        import numba

        with _lock:
            dispatcher = self._made("compiled", partial(self._dispatcher, numba.njit))
        kept: Any = getattr(dispatcher, "_cache", None)
        if not hasattr(kept, "_cache_file"):
            return False
        types = tuple(map(numba.typeof, args))
        if kept.load_overload(types, cast(Any, dispatcher).targetctx) is not None:
            return False
        if types in self._tried:
            return False  # the process could not do it; this one may, or says why not
        # One at a time: each takes a processor for seconds.
        if _compiler is None or _compiler.poll() is not None:
            self._tried.add(types)
            _compiler = _start_compiling(self.py_func, args, kept.cache_path)
        self._awaited = _compiler
        return self._awaited is not None

    @property
    def plain(self) -> Callable[P, R]:
        """The function as plain Python, and so are the kernels that it calls."""
        if self._plain is None:
            with _lock:
                self._plain = self._made("plain", lambda function: function)
        return self._plain

    @property
    def compiled(self) -> Callable[P, R]:
        """The function as machine code, compiled now or read from disk; plain without Numba."""
        if self._compiled is None:
            try:
                import numba
            except ImportError:
                self._compiled = self.plain
                return self._compiled
            with _lock:
                _announce_compilation()
                self._compiled = self._made("compiled", partial(self._dispatcher, numba.njit))
        return self._compiled

    def _made(self, form: str, make: Callable[[Any], Any]) -> Callable[P, R]:
        """Make the function anew in a form, with the kernels that it calls in the same form."""
        if form in self._making:
            return self._making[form]
        function = self.py_func
        names: dict[str, Any] = {}
        made = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        made.__doc__ = function.__doc__
        self._making[form] = cast(Callable[P, R], make(made))
        known = function.__globals__
        names |= {name: known[name] for name in ("__builtins__", "__name__")}
        for name in function.__code__.co_names:
            if name in known:
                value = known[name]
                names[name] = getattr(value, form) if isinstance(value, Kernel) else value
        return self._making[form]

    def _dispatcher(self, njit: Callable[..., Any], function: FunctionType) -> Any:
        try:
            dispatcher = njit(cache=True, nogil=True, **self._options)(function)
        except RuntimeError:  # no folder to keep the code in
            return njit(nogil=True, **self._options)(function)
        _stamp_with_folder(dispatcher)
        return dispatcher


IN_BACKGROUND = (
    "bursar: compiling inner loops in the background; until then they run as plain Python"
)
"""Line on a terminal whose command goes on while code is compiled."""

COMPILING = (
    "bursar: compiling inner loops for a large question; they are kept on disk for later commands"
)
"""Line on a terminal whose command waits for the compiler."""


def _start_compiling(
    function: FunctionType, args: tuple[object, ...], folder: str
) -> "subprocess.Popen[bytes] | None":
    """Start a process that compiles a kernel; None: no process can be started."""
    import subprocess  # late: most commands compile nothing

    what = pickle.dumps((function.__module__, function.__qualname__, _examples(args), folder))
    try:
        # Of a group of its own: Ctrl-C ends the command, and the compiler goes on.
        compiler = subprocess.Popen(
            [sys.executable, "-P", "-c", "from bursar.compiling import compile_kernel as c; c()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert compiler.stdin is not None
        with compiler.stdin as stdin:
            stdin.write(what)
    except OSError:
        return None
    if sys.stderr.isatty():
        _say_once(IN_BACKGROUND)
    return compiler


def compile_kernel() -> None:
    """Compile the kernel that standard input names, for arguments of the types there, onto disk."""
    os.nice(10)
    module, name, examples, folder = pickle.loads(sys.stdin.buffer.read())
    # One after the other, also where several commands want code: whoever comes second finds it.
    lock = take_lock(os.path.join(folder, ".compiling"), wait=600.0)
    import numba

    kernel: Kernel[..., Any] = getattr(import_module(module), name)
    dispatcher: Any = kernel.compiled
    dispatcher.compile(tuple(map(numba.typeof, examples)))
    os.close(lock)


def _examples(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return values of the same types for Numba, with few elements in place of all."""
    return tuple(map(_example, values))


def _example(value: object) -> object:
    if isinstance(value, tuple):
        inner = _examples(value)
        return cast(Any, type(value))(*inner) if hasattr(value, "_fields") else inner
    if not isinstance(value, np.ndarray):
        return value
    # A single row or column is contiguous both ways, which Numba takes for rows.
    order: Literal["C", "F"] = "C" if value.flags.c_contiguous else "F"
    example = np.zeros((4,) * value.ndim, value.dtype, order)
    if not (value.flags.c_contiguous or value.flags.f_contiguous):
        example = example[(slice(None, None, 2),) * value.ndim]
    example.flags.writeable = value.flags.writeable
    return example


@cache
def _announce_compilation() -> None:
    """Have a terminal told, once, when code is compiled that was not found on disk."""
    if not sys.stderr.isatty():
        return
    from numba.core import event

    class Announcement(event.Listener):
        """Prints the line when the compiler begins for the first time."""

        def on_start(self, event: Any) -> None:
            _say_once(COMPILING)

        def on_end(self, event: Any) -> None:
            pass

    listen: Any = event.register  # Numba has no types
    listen("numba:compile", Announcement())


@cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prefer_machine_code() -> None:
    """Run all kernels of this process as machine code from now on, however small a question is."""
    global _spent
    _spent = float("inf")


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    """
    Have a function compiled when that pays, and then kept on disk.

    Where no folder can be written (neither ``NUMBA_CACHE_DIR``, nor the
    package's own, nor the user's) each process compiles anew. Without Numba the
    function runs as the Python it is: slowly, with the same results.
    """
    return Kernel(function, {})


def compiled_part(function: Callable[P, R]) -> Kernel[P, R]:
    """
    The same for a function that only compiled functions call: no way in from Python.

    Making that way takes a third of the time that compiling takes.
    """
    return Kernel(function, PART)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """
    The same for a part that is called in the innermost loop: put into its callers' code.

    Arrays that are handed to a function are counted in and out, which can take
    longer than the function; but all this makes the callers slow to compile.
    """
    return Kernel(function, {**PART, "forceinline": True})


def _timed(plain: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    global _spent
    began = time.perf_counter()
    try:
        with np.errstate(all="ignore"):  # machine code does not warn either
            return cast(R, _python_scalars(plain(*args, **kwargs)))
    finally:
        _spent += time.perf_counter() - began


def _python_scalars(value: Any) -> Any:
    """Return numbers as the types of Python, which is what machine code returns."""
    if type(value) is tuple:
        return tuple(map(_python_scalars, value))
    return value.item() if isinstance(value, np.generic) else value


def _elements(values: tuple[object, ...]) -> int:
    """Count the elements of arrays, also of arrays in tuples."""
    count = 0
    for value in values:
        if isinstance(value, np.ndarray):
            count += value.size
        elif isinstance(value, tuple):
            count += _elements(value)
    return count


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
