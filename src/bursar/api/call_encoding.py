"""
Encoding of Python calls: a function is pickled once, not for every call.

What is pickled by value (lambdas, functions of a program or of a notebook) takes a picture of
variables that the function uses. So a pickle is used again only while everything in the picture is
the same object and cannot have changed, and only of functions that change nothing in the picture:
each call must find what it would have found in a picture of its own.
"""

import dis
import itertools
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import cloudpickle

from bursar.formats.units import parse_amount
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.worker.python_calls import encode_call, import_path, join_call

T = TypeVar("T")

_MOST_FUNCTIONS = 64

_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values never change."""

_CHANGES = frozenset(
    dis.opmap[name]
    for name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF")
)
"""Instructions by which a function may change what later calls of it find."""

_REACHES_ALL = frozenset({"globals", "exec", "eval", "setattr", "delattr"})
"""Names by which a function may do so unseen."""

_ABSENT = object()


class CallEncoder:
    """
    Encodes calls as payloads of :class:`bursar.model.task.Call`.

    Its methods may be called from any thread.

    Parameters
    ----------
    shares
        Whether calls of one function share its pickle. Only callees of this version of Bursar
        read that, so not for calls that go to other Bursars.
    """

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares
        self._known: dict[FunctionType, _Picture] = {}
        self._path: list[str] = []
        self._seen: tuple[list[Any] | None, str] = (None, "")

    def encode(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """
        Return the payload of a call; raise whatever pickling raises.

        By value where need be: pickle alone refuses lambdas and functions of a notebook.
        """
        if self._shares and type(function) is FunctionType:
            shared = self._shared_part(function)
            if shared:
                return join_call(shared, _arguments(args, kwargs))
        return encode_call(cloudpickle.dumps((function, args, kwargs)))

    def _shared_part(self, function: FunctionType) -> bytes:
        """Return the pickle of a function with the module path; empty: it cannot be shared."""
        path = self._import_path()
        picture = self._known.get(function)
        if picture is None or picture.path is not path or not picture.holds():
            picture = _picture_of(function, path)
            if len(self._known) >= _MOST_FUNCTIONS:
                self._known.clear()
            self._known[function] = picture
        return picture.shared

    def _import_path(self) -> list[str]:
        """Return the module path, the same object as long as it is the same."""
        seen, here = self._seen
        if seen != sys.path or (here and here != os.getcwd()):
            # Relative entries, if any, are relative to this folder.
            here = "" if all(map(_is_absolute, sys.path)) else os.getcwd()
            self._path, self._seen = import_path(), (list(sys.path), here)
        return self._path


def _is_absolute(entry: object) -> bool:
    return isinstance(entry, str) and entry[:1] == "/"


@dataclass(slots=True)
class _Picture:
    """
    The pickle of a function, and all that is in it.

    Parameters
    ----------
    path
        Module path that is in the pickle.
    functions, variables, cells
        The function and those that it uses, each with its code and defaults; global variables by
        their dictionary and name, and variables of enclosing functions, with their values.
    is_shared
        Whether what is in the pickle can be compared with what is there now, and calls leave it
        alone.
    """

    path: list[str]
    registered: set[str]
    shared: bytes = b""
    functions: list[tuple[FunctionType, CodeType, Any]] = field(default_factory=list)
    variables: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    cells: list[tuple[CellType, Any]] = field(default_factory=list)
    is_shared: bool = True

    def holds(self) -> bool:
        """Whether all that is in the pickle is still there."""
        if not self.is_shared:
            # Looked at anew once something differs, which for most never happens.
            return all(f.__code__ is code for f, code, _ in self.functions)
        for function, code, defaults in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__dict__ or function.__kwdefaults__:
                return False
        for variables, name, value in self.variables:
            if variables.get(name, _ABSENT) is not value:
                return False
        for cell, value in self.cells:
            if _content(cell) is not value:
                return False
        return bool(self.registered == cloudpickle.list_registry_pickle_by_value())

    def take(self, function: FunctionType) -> bool:
        """Add what a function uses; return False where that, or its use, may change."""
        if any(known is function for known, _, _ in self.functions):
            return True
        code = function.__code__
        self.functions.append((function, code, function.__defaults__))
        if function.__dict__ or function.__kwdefaults__:
            return False
        if not all(type(value) in _CONSTANTS for value in function.__defaults__ or ()):
            return False
        codes = list(_codes(code))
        if any(set(one.co_code[::2]) & _CHANGES for one in codes):
            return False
        for cell in function.__closure__ or ():
            value = _content(cell)
            self.cells.append((cell, value))
            if not self._is_constant(value):
                return False
        names = {name for one in codes for name in one.co_names}
        if names & _REACHES_ALL:
            return False
        for name in names:
            value = function.__globals__.get(name, _ABSENT)
            self.variables.append((function.__globals__, name, value))
            if value is not _ABSENT and not self._is_constant(value):
                return False
        return True

    def _is_constant(self, value: object) -> bool:
        if type(value) is FunctionType:
            return self.take(value)
        if type(value) is ModuleType:
            return sys.modules.get(value.__name__) is value
        return type(value) in _CONSTANTS


def _picture_of(function: FunctionType, path: list[str]) -> _Picture:
    picture = _Picture(path, cloudpickle.list_registry_pickle_by_value())
    data = cloudpickle.dumps(function)
    if _by_reference(function) == data:
        picture.functions.append((function, function.__code__, function.__defaults__))
    elif not picture.take(function):
        picture.is_shared = False
        del picture.functions[1:]
        return picture
    picture.shared = pickle.dumps((path, data))
    return picture


def _by_reference(function: FunctionType) -> bytes:
    try:
        return pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return b""


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _ABSENT


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    if not args and not kwargs:
        return _NO_ARGUMENTS
    if _CONSTANTS.issuperset(map(type, args)) and _CONSTANTS.issuperset(map(type, kwargs.values())):
        return pickle.dumps((args, kwargs), pickle.HIGHEST_PROTOCOL)  # in C, and the same bytes
    return bytes(cloudpickle.dumps((args, kwargs)))


_NO_ARGUMENTS = pickle.dumps(((), {}), pickle.HIGHEST_PROTOCOL)


# Calls in chunks, and their budget.


def run_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    """Make the calls of a chunk."""
    return [fn(*arguments) for arguments in chunk]


def chunks_of(items: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the items in lists of up to ``size``."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def flat(chunks: Iterator[list[T]]) -> Iterator[T]:
    """Yield the items of chunks; closing this generator closes the inner one, which cancels."""
    for chunk in chunks:
        yield from chunk


def amount_of(budget: str | float | None, sites: Sequence[SiteFacts]) -> float | None:
    """Return a budget in the currency of the sites; None: there is none."""
    if budget is None:
        return None
    amount, currency = parse_amount(budget)
    if currency not in (None, sites[0].currency):
        raise InputError(f"the budget is in {currency}, the sites ask {sites[0].currency}")
    return amount


def call_kind(fn: Callable[..., Any], args: Sequence[Any]) -> str:
    """Return the name of a call's kind: the qualified name of the function that users know."""
    if fn is run_chunk:
        # A chunk takes as long as all its calls.
        return f"{call_kind(args[0], ())} x{len(args[1])}"
    if fn is timed_call:
        return call_kind(args[0], ())
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return name


def timed_call(
    function: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[float, T]:
    """Call a function; return the seconds that it took, and its result."""
    began = time.perf_counter()
    value = function(*arguments, **named)
    return time.perf_counter() - began, value
