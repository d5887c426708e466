"""Reconnection to a lost dispatcher, while the worker's tasks go on."""

import contextlib
import os
import random
import threading
import time

from bursar.worker.dispatcher_connection import (
    DispatcherConnection,
    WorkerSettings,
    make_connection,
)

FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
"""Seconds before a try, doubled each time."""


class Reconnector:
    """
    Tries to connect, in a thread: a connection may take seconds, and tasks are not to wait.

    The descriptor becomes readable when a connection is made, or the attempt is given up.

    Parameters
    ----------
    until
        Time at which to give up, by ``time.monotonic()``.
    setbacks
        Connections, one after the other, that were made and came to nothing.
    """

    def __init__(self, settings: WorkerSettings, until: float, setbacks: int) -> None:
        self._settings = settings
        self._until = until
        self._line: DispatcherConnection | None = None
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(setbacks, 10))
        threading.Thread(target=self._try, args=(wait,), daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the attempt is over."""
        return self._event

    def take(self) -> DispatcherConnection | None:
        """Hand the connection over to the caller; None when the attempt was given up."""
        line, self._line = self._line, None
        return line

    def close(self) -> None:
        """Stop trying to reconnect."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            os.close(self._event)
            if self._line is not None:
                self._line.close()

    def _try(self, wait: float) -> None:
        line = None
        # Workers that lost the same dispatcher do not all come back at one instant.
        while line is None and not self._closed.wait(wait * random.uniform(0.5, 1.0)):
            if time.monotonic() >= self._until:
                break
            with contextlib.suppress(OSError):
                line = make_connection(self._settings)
            wait = min(LONGEST_WAIT, 2 * wait)
        # close() may run between the connecting and now: one of the two closes the connection.
        with self._lock:
            if not self._closed.is_set():
                self._line = line
                os.eventfd_write(self._event, 1)
            elif line is not None:
                line.close()
