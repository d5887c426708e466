"""
Results of calls as plain data: values, and exceptions described in words.

A description becomes an exception of one of the built-in classes below, or else a
:class:`bursar.worker.raised.RemoteError`. No class is ever looked up by a name that was sent.
"""

import contextlib
from typing import Any

from bursar.worker.plain_data import NotPlainError, decode_plain, encode_plain
from bursar.worker.raised import RemoteError, RemoteTraceback, line_of, trace_of

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
