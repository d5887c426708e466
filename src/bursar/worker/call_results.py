"""
Results of calls as plain data: values and described exceptions; decoding them runs no code.

A pickle names functions that the reader calls. Whoever makes the bytes therefore runs what he
likes as the user who reads them. Results from a site that is not trusted with that come in this
form instead. A value comes back equal and of the same type, or is refused where it was made:

- ``None``, ``bool``, ``int`` of any size, ``float``, ``complex``, ``str``, ``bytes``,
  ``bytearray``;
- ``list``, ``tuple``, ``dict``, ``set`` and ``frozenset`` of these;
- NumPy arrays and scalars of truth values, numbers, times and spans of time. Arrays come back in
  C order.

Subclasses (named tuples, enumerations, data classes) are refused: to rebuild one takes its
class, which is code. Containers that occur twice come back as two, since only values are kept.

The form is MessagePack by msgspec, with none of its maps and extensions: a container, and what
MessagePack cannot tell apart, is an array whose first item says what the others are.

A description becomes an exception of one of the built-in classes below, or else a
:class:`bursar.worker.raised.RemoteError`. No class is ever looked up by a name that was sent.
"""

import contextlib
import math
import re
import sys
from typing import Any

import msgspec

from bursar.worker.raised import RemoteError, RemoteTraceback, line_of, trace_of

# Values that travel as data: decoding them builds a value and can run no code.

DEPTH = 200
"""Levels of nested containers, at most."""

MOST_PARTS = 1 << 23
"""Most values that a value may consist of: shared lists could make a small one endless."""

_LIST, _TUPLE, _DICT, _SET, _FROZENSET = range(5)
_BYTEARRAY, _INT, _COMPLEX, _STR, _ARRAY, _SCALAR = range(5, 11)

_SELF = frozenset({type(None), bool, float, bytes})
"""Types whose values MessagePack encodes unchanged."""

_DECODED = frozenset({*_SELF, int, str})
"""Types of items that are decoded already."""

_FEWEST, _MOST = -(1 << 63), (1 << 64) - 1
"""Integers that MessagePack holds."""

_DTYPE = re.compile(
    r"\|b1|[<>|][iu][1248]|[<>][fc][0-9]{1,2}|[<>][mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?"
)
"""Types of array items that hold no pointers and need no class."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class NotPlainError(ValueError):
    """A value that does not travel as data, or bytes that are none."""


def encode_plain(value: object) -> bytes:
    """
    Encode a value as data.

    Raises
    ------
    NotPlainError
        When it is, or holds, something of another type, is nested too deeply (as a list that
        holds itself is) or has too many parts.
    """
    try:
        return _encode(_PlainEncoder().lift(value, DEPTH))
    except (msgspec.MsgspecError, OverflowError, ValueError) as error:
        if isinstance(error, NotPlainError):
            raise
        raise NotPlainError(f"it cannot be encoded: {error}") from None


def decode_plain(data: bytes) -> Any:
    """
    Decode the output of :func:`encode_plain`; bytes of any origin run no code.

    Raises
    ------
    NotPlainError
        When the bytes are no value.
    """
    try:
        return _built(_decode(data), DEPTH)
    except NotPlainError:
        raise
    except Exception as error:  # whatever untrusted bytes lead to: an array's size, a key
        raise NotPlainError(f"these bytes are not data: {type(error).__name__}") from None


class _PlainEncoder:
    """Makes one value into what MessagePack holds."""

    def __init__(self) -> None:
        self._parts = 0

    def lift(self, value: object, depth: int) -> object:
        kind = type(value)
        if kind in _SELF:
            return value
        if kind is int:
            assert isinstance(value, int)
            if _FEWEST <= value <= _MOST:
                return value
            size = value.bit_length() // 8 + 1
            return _INT, value.to_bytes(size, "little", signed=True)
        if kind is str:
            assert isinstance(value, str)
            try:
                if not value.isascii():
                    value.encode()
            except UnicodeEncodeError:  # half of a surrogate pair is no UTF-8
                return _STR, value.encode("utf-8", "surrogatepass")
            return value
        if kind is complex:
            assert isinstance(value, complex)
            return _COMPLEX, value.real, value.imag
        if kind is bytearray:
            return _BYTEARRAY, value
        return self._lift_container(value, kind, depth)

    def _lift_container(self, value: Any, kind: type, depth: int) -> object:
        mark = _CONTAINERS.get(kind)
        if mark is None:
            return _lifted_array(value, kind)
        if depth == 0:
            raise NotPlainError(f"it nests containers more than {DEPTH} deep, or holds itself")
        # Counted by occurrence: a list of ten lists of ten lists, each the same object, is small in
        # memory and endless in bytes.
        self._parts += len(value)
        if self._parts > MOST_PARTS:
            raise NotPlainError(f"it has more than {MOST_PARTS} parts")
        lift = self.lift
        lifted: list[object] = [mark]
        if kind is dict:
            for key, item in value.items():
                lifted.append(lift(key, depth - 1))
                lifted.append(lift(item, depth - 1))
        # Most long lists hold numbers or bytes: one look in C instead of a call for each item.
        elif _SELF.issuperset(map(type, value)):
            lifted.extend(value)
        else:
            lifted.extend([lift(item, depth - 1) for item in value])
        return lifted


_CONTAINERS: dict[type, int] = {
    list: _LIST,
    tuple: _TUPLE,
    dict: _DICT,
    set: _SET,
    frozenset: _FROZENSET,
}


def _lifted_array(value: Any, kind: type) -> object:
    numpy = sys.modules.get("numpy")  # where nobody has loaded it, nothing is an array
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        name = value.dtype.str
        # Both: a structured type, or one with metadata, has a name that loses part of it.
        if _is_plain_dtype(name) and value.dtype == numpy.dtype(name):
            if kind is numpy.ndarray:
                return _ARRAY, name, value.shape, value.tobytes()
            if numpy.dtype(name).type is kind:
                return _SCALAR, name, value.tobytes()
        what = f"NumPy array of {value.dtype}" if kind is numpy.ndarray else "value"
        raise NotPlainError(f"it is or holds a {what} of type {_full_name(kind)}")
    raise NotPlainError(f"it is or holds a value of type {_full_name(kind)}")


def _built(node: Any, depth: int) -> Any:
    kind = type(node)
    if kind in _DECODED:
        return node
    if kind is not list or not node or type(node[0]) is not int:
        raise NotPlainError("these bytes are not data: no such form")
    mark = node[0]
    if mark in (_LIST, _TUPLE, _DICT, _SET, _FROZENSET):
        if depth == 0:
            raise NotPlainError(f"these bytes nest containers more than {DEPTH} deep")
        del node[0]
        if not _DECODED.issuperset(map(type, node)):
            node = [_built(item, depth - 1) for item in node]
        return _gathered(mark, node)
    return _LEAVES[mark](*node[1:])


def _gathered(mark: int, items: list[Any]) -> Any:
    if mark == _LIST:
        return items
    if mark == _TUPLE:
        return tuple(items)
    found: Any
    if mark == _DICT:
        found = dict(zip(items[::2], items[1::2], strict=True))
        size = len(items) // 2
    else:
        found = set(items) if mark == _SET else frozenset(items)
        size = len(items)
    # A sender that repeats a key would have it mean one thing here and another to who checks the
    # bytes.
    if len(found) != size:
        raise NotPlainError("these bytes are not data: equal keys")
    return found


def _built_int(data: bytes) -> int:
    return int.from_bytes(_bytes(data), "little", signed=True)


def _built_complex(real: float, imaginary: float) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise NotPlainError("these bytes are not data: no complex number")
    return complex(real, imaginary)


def _built_str(data: bytes) -> str:
    return _bytes(data).decode("utf-8", "surrogatepass")


def _built_bytearray(data: bytes) -> bytearray:
    return bytearray(_bytes(data))


def _built_array(name: str, shape: list[int], data: bytes) -> Any:
    import numpy

    dtype = _dtype(name)
    if any(type(length) is not int or length < 0 for length in shape):
        raise NotPlainError("these bytes are not data: no shape of an array")
    # Before NumPy sees the shape, which could ask for any amount of memory.
    if math.prod(shape) * dtype.itemsize != len(_bytes(data)):
        raise NotPlainError("these bytes are not data: no array of this shape")
    # A truth value that is neither 0 nor 1 makes NumPy's results depend on the operation.
    if dtype.kind == "b" and data.translate(None, b"\0\1"):
        raise NotPlainError("these bytes are not data: no truth values")
    return numpy.ndarray(tuple(shape), dtype, data).copy()  # which may be written to


def _built_scalar(name: str, data: bytes) -> Any:
    return _built_array(name, [], data)[()]


_LEAVES: dict[int, Any] = {
    _BYTEARRAY: _built_bytearray,
    _INT: _built_int,
    _COMPLEX: _built_complex,
    _STR: _built_str,
    _ARRAY: _built_array,
    _SCALAR: _built_scalar,
}


def _dtype(name: str) -> Any:
    import numpy

    if type(name) is not str or not _is_plain_dtype(name):
        raise NotPlainError("these bytes are not data: no type of an array's items")
    return numpy.dtype(name)


def _is_plain_dtype(name: str) -> bool:
    return _DTYPE.fullmatch(name) is not None


def _bytes(data: object) -> bytes:
    if type(data) is not bytes:
        raise NotPlainError("these bytes are not data: no bytes where some belong")
    return data


def _full_name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


# Results of calls as plain data: values, and exceptions described in words.

BUILT_IN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        BlockingIOError,
        BrokenPipeError,
        BufferError,
        BytesWarning,
        ChildProcessError,
        ConnectionAbortedError,
        ConnectionError,
        ConnectionRefusedError,
        ConnectionResetError,
        DeprecationWarning,
        EOFError,
        EncodingWarning,
        Exception,
        FileExistsError,
        FileNotFoundError,
        FloatingPointError,
        FutureWarning,
        ImportError,
        ImportWarning,
        IndentationError,
        IndexError,
        InterruptedError,
        IsADirectoryError,
        KeyError,
        LookupError,
        MemoryError,
        ModuleNotFoundError,
        NameError,
        NotADirectoryError,
        NotImplementedError,
        OSError,
        OverflowError,
        PendingDeprecationWarning,
        PermissionError,
        ProcessLookupError,
        RecursionError,
        ReferenceError,
        ResourceWarning,
        RuntimeError,
        RuntimeWarning,
        SyntaxError,
        SyntaxWarning,
        SystemError,
        TabError,
        TimeoutError,
        TypeError,
        UnboundLocalError,
        UnicodeDecodeError,
        UnicodeEncodeError,
        UnicodeError,
        UnicodeTranslateError,
        UnicodeWarning,
        UserWarning,
        ValueError,
        Warning,
        ZeroDivisionError,
    )
}
"""
Classes of which an exception that was described is made.

Those that end a program (``SystemExit``, ``KeyboardInterrupt``) or a loop (``StopIteration``) are
not among them: a site has no business doing either in its client.
"""


class ValueRefusedError(Exception):
    """The result of a call is not plain data; the message says what was wrong with the value."""


_RAISED, _REFUSED = "raised", "refused"


def described_error(error: BaseException) -> bytes:
    """Describe the exception of a call as data, for :func:`result_of_data`."""
    kind = type(error)
    # By identity: a class of the user's may have the name of a built-in one.
    name = kind.__name__ if BUILT_IN.get(kind.__name__) is kind else ""
    stored = getattr(error, "__notes__", None)
    notes = [note for note in stored if type(note) is str] if type(stored) is list else []
    arguments = _arguments(error) if name else []
    return encode_plain((_RAISED, name, arguments, line_of(error), trace_of(error), notes))


def value_as_data(value: object) -> tuple[bool, bytes]:
    """
    Encode the value of a call as data, for :func:`result_of_data`.

    Returns
    -------
    tuple
        Whether that could be done, and the bytes; otherwise they say why it could not.
    """
    try:
        return True, encode_plain(value)
    except NotPlainError as refusal:
        return False, encode_plain((_REFUSED, str(refusal)))


def result_of_data(data: bytes, *, succeeded: bool) -> Any:
    """
    Decode the result of a call from plain data; no code of the sender runs.

    Parameters
    ----------
    succeeded
        Whether the call returned; otherwise the data describe its exception.

    Returns
    -------
    Any
        Value of the call, or its exception.

    Raises
    ------
    ValueRefusedError
        When the value does not travel as data, or the bytes are none.
    """
    try:
        found = decode_plain(data)
    except NotPlainError as error:
        raise ValueRefusedError(str(error)) from None
    if succeeded:
        return found
    match found:
        case (str(form), str(reason)) if form == _REFUSED:
            raise ValueRefusedError(reason)
        case (str(form), str(name), list(arguments), str(line), str(trace), list(notes)) if (
            form == _RAISED
        ):
            made = _made(name, arguments, line)
            for note in notes:
                if type(note) is str:
                    made.add_note(note)
            made.__cause__ = RemoteTraceback(trace)
            return made
    raise ValueRefusedError("these bytes are not data: they describe no exception")


def _arguments(error: BaseException) -> list[Any]:
    """Return the arguments of an exception, or the message where the arguments are no data."""
    try:
        found = list(error.__reduce__()[1])  # of an OSError, with the names of its files
        encode_plain((found,))  # as deep as it will lie
    except Exception:
        return [line_of(error).partition(": ")[2]]
    return found


def _made(name: str, arguments: list[Any], line: str) -> Exception:
    kind = BUILT_IN.get(name)
    if kind is not None:
        with contextlib.suppress(Exception):  # these are not what the class is called with
            # Constructors of built-in classes only: they run no code of the sender's.
            return kind(*arguments)
    return RemoteError(line)
