"""Exceptions of calls as pickles, for receivers that trust the sender."""

import contextlib
import pickle
from typing import Any


class RemoteTraceback(Exception):
    """Traceback of a call's exception in the call's own process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(Exception):
    """Stands for an exception of a call that cannot be sent, or not be rebuilt."""


def pickled_error(error: BaseException) -> bytes:
    """
    Pickle the exception of a call.

    Unpickling yields the exception, or a :class:`RemoteError` where the class does not
    load; the cause is a :class:`RemoteTraceback`.
    """
    return pickle.dumps(_Raised(error))


def rebuild(error: bytes, line: str, trace: str) -> BaseException:
    """
    Rebuild the exception of a call from a pickle of :func:`pickled_error`, on the caller's side.

    Parameters
    ----------
    error
        Pickled; empty when that could not be done.
    line
        Message of the exception, used where its class does not load here.
    trace
        The traceback in the call's process.

    Returns
    -------
    BaseException
        With a :class:`RemoteTraceback` as its cause.
    """
    rebuilt: BaseException = RemoteError(line)
    if error:
        with contextlib.suppress(BaseException):  # its class may ask for what is not there
            loaded = pickle.loads(error)
            if isinstance(loaded, BaseException):
                rebuilt = loaded
    rebuilt.__cause__ = RemoteTraceback(trace)
    return rebuilt


def pickled(value: Any) -> bytes:
    """Pickle a value; by value what cannot be imported elsewhere, where need be."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        return bytes(cloudpickle.dumps(value))


class _Raised:
    """Pickles as a call of :func:`rebuild`, so that unpickling yields the exception again."""

    def __init__(self, error: BaseException) -> None:
        self._trace = trace_of(error)
        self._line = line_of(error)
        try:
            self._error = pickled(error)
        except BaseException:
            # The receiver then gets a RemoteError with this line and traceback.
            self._error = b""

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self._error, self._line, self._trace)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an exception as text, from the call on."""
    import traceback  # what a call's process need not load before a call raises

    trace = error.__traceback__
    # From the call on; what leads there is ours.
    shown = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    return "".join(traceback.format_exception(type(error), error, shown))


def line_of(error: BaseException) -> str:
    """Return class and message of an exception in one line."""
    import traceback

    formatted = traceback.TracebackException(type(error), error, None)
    formatted.__notes__ = None  # they would come last
    return list(formatted.format_exception_only())[-1].rstrip("\n")
