"""Calling of work that needs an asyncio loop where one may already run."""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_outside_loop(work: Callable[[], T]) -> T:
    """Call ``work``, which runs an asyncio loop, also within a running loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return _in_thread(work)  # a thread has one loop at a time


def _in_thread(work: Callable[[], T]) -> T:
    """Call ``work`` in a new thread, and pass an interrupt on to that thread."""
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=do, name="bursar-run")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        # Tasks must not go on spending behind an interrupted cell.
        if thread.is_alive() and not done.done():
            # Python delivers Ctrl-C to the main thread only; this hands it on, as for a run without
            # a notebook.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
        raise
    finally:
        thread.join()
