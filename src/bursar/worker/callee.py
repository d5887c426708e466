"""
The callee: a process that carries out Python calls of a worker, one after the other.

Calls come as messages of one queue, a SOCK_SEQPACKET pair, and answers go back on it. The worker
holds the callee's end as well, so that it can take back what the callee has not begun: the kernel
gives each message to one of them. Each answer is sent before the next call begins, so that the end
of this process spoils the call that runs and none before it.

A worker that were woken by each answer would spend more on waking than on answers. So the callee
says on a second pair, the bell, when answers are to be taken: when nothing waits any more, when the
last time was a while ago, and when it *pauses*. The callee pauses after a call whose surroundings
the worker has to put in order: one that has printed something, or has left something in its folder.
The next call begins when the worker says so. What is found in the pipes of the callee's output
therefore always belongs to one call.

This module loads little: hundreds of callees may run.
"""

import contextlib
import ctypes
import os
import pickle
import resource
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import MutableMapping
from typing import Any

from bursar.worker.raised import pickled, pickled_error

CALL = struct.Struct("<QQIIQB")
"""Number of the call, its task, processors, bytes of the surroundings and of the payload, flags."""

ANSWER = struct.Struct("<QBddddQQ")
"""Number of the call, flags, begin and end by the monotonic clock, user and system seconds, peak
memory in bytes, bytes of the value."""

AS_DATA, ALONE, HAS_SURROUNDINGS = 1, 2, 4
"""Flags of a call: its value returns as data; the callee pauses after it in any case; the folder,
variables and output of this call and the following ones come with it."""

SUCCEEDED, PAUSED = 1, 2
"""Flags of an answer."""

PIECE = 1 << 16
"""Bytes of the largest message; more is sent in several."""

CALLS, BELL = 3, 4
"""Descriptors of the callee's ends; a template has its channel where callees have their calls."""

RING, MARK, GO = b"r", b"m", b"g"
"""Words on the bell: take the answers; pause after the present call, since its output is being
read; go on after a pause."""

SHARED = b"\0"
"""First byte of a payload in two parts, the first of which is the same for many calls; a pickle
begins otherwise."""

SIZE = struct.Struct("<I")
"""Bytes of the first part, which come after :data:`SHARED`."""

_RING_AFTER = 0.001  # seconds between rings while calls wait
_MOST_FUNCTIONS = 64
_ROOM = socket.CMSG_SPACE(4 * array("i").itemsize)
_NOW = socket.MSG_DONTWAIT
_FLAGS = socket.MSG_CMSG_CLOEXEC


class Callee:
    """
    Carries out calls.

    Parameters
    ----------
    calls, bell
        The callee's ends.
    """

    def __init__(self, calls: socket.socket, bell: socket.socket) -> None:
        self._calls = calls
        self._bell = bell
        # Programs that a call starts must not write answers.
        for channel in (calls, bell):
            channel.set_inheritable(False)
        self._buffer = bytearray(PIECE)
        self._output: list[int] = []  # where the calls' output goes, and where it is read
        self._poll = select.poll()
        self._folder = ""
        self._changed = 0
        self._variables = ProcessVariables()
        self._functions: dict[bytes, tuple[list[str], Any]] = {}
        self._rung = 0.0

    def run(self) -> None:
        """Carry out calls until the worker is gone."""
        calls, loads = self._calls, pickle.loads
        measure, usage = resource.getrusage, resource.RUSAGE_SELF
        while (message := self._next()) is not None:
            data, fds = message
            number, task, processors, around, size, flags = CALL.unpack_from(data)
            middle = CALL.size + around
            if len(data) < middle + size:
                data = self._whole(data, middle + size)
                if not data:
                    return
            more: dict[str, str] = {}
            if flags & HAS_SURROUNDINGS:
                self._folder, self._changed, first, more = loads(data[CALL.size : middle])
                self._direct(fds)
                if first is not None:
                    self._variables.set_base(first)
            # Each time: the call before may have changed any of these.
            os.chdir(self._folder)
            os.dup2(self._output[0], 1)
            os.dup2(self._output[1], 2)
            self._variables.prepare(task, processors, more)
            before = measure(usage)
            begun = time.monotonic()
            succeeded, value = self._carry_out(data[middle:], as_data=bool(flags & AS_DATA))
            # Before the answer: the worker takes what was printed when it has that.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # the call may have closed or replaced it
                    stream.flush()
            ended, after = time.monotonic(), measure(usage)
            pauses = bool(flags & ALONE) or self._has_left_something()
            head = ANSWER.pack(
                number,
                succeeded * SUCCEEDED | pauses * PAUSED,
                begun,
                ended,
                after.ru_utime - before.ru_utime,
                after.ru_stime - before.ru_stime,
                after.ru_maxrss * 1024,
                len(value),
            )
            try:
                if len(value) <= PIECE - ANSWER.size:
                    self._send(head + value)
                else:
                    self._send(head)
                    view = memoryview(value)
                    for start in range(0, len(value), PIECE):
                        self._send(view[start : start + PIECE])
                if pauses:
                    self._ring()
                    if not self._may_go_on():
                        return
                elif ended - self._rung >= _RING_AFTER:
                    self._ring()
            except ConnectionError:  # the worker is gone
                return
            del data, value
        calls.close()

    def _next(self) -> tuple[memoryview, list[int]] | None:
        """Return the next message and its descriptors; None when the worker is gone."""
        calls, buffer = self._calls, self._buffer
        try:
            try:
                size, extra, _, _ = calls.recvmsg_into([buffer], _ROOM, _NOW | _FLAGS)
            except BlockingIOError:
                # Nothing waits: the worker is to give more, if it has any.
                self._ring()
                size, extra, _, _ = calls.recvmsg_into([buffer], _ROOM, _FLAGS)
        except ConnectionError:
            return None
        if not size:
            return None
        fds = array("i")
        for _, _, piece in extra:
            fds.frombytes(piece)
        return memoryview(buffer)[:size], list(fds)

    def _whole(self, begun: memoryview, size: int) -> memoryview:
        """Read the further messages of a large call; return nothing when the worker is gone."""
        data = bytearray(begun)
        while len(data) < size:
            piece = self._calls.recv(PIECE)
            if not piece:
                return memoryview(b"")
            data += piece
        return memoryview(data)

    def _direct(self, fds: list[int]) -> None:
        """Have the output of calls go to other descriptors; two more are those of its readers."""
        for fd in self._output:
            os.close(fd)
        self._output = fds
        self._poll = select.poll()
        # In this order: the worker marks the bell before it reads. So output that was there and is
        # no more was read by then, and the mark is seen.
        for fd in fds[2:]:
            self._poll.register(fd, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    def _has_left_something(self) -> bool:
        """Whether the last call has printed, or has changed its folder."""
        if self._poll.poll(0):
            return True
        try:
            return os.stat(self._folder).st_mtime_ns != self._changed
        except OSError:
            return True

    def _send(self, message: "bytes | memoryview") -> None:
        try:
            self._calls.send(message, _NOW)
        except BlockingIOError:
            self._ring()  # else nobody would make room
            self._calls.send(message)

    def _ring(self) -> None:
        self._rung = time.monotonic()
        with contextlib.suppress(BlockingIOError):  # it has been rung often enough
            self._bell.send(RING, _NOW)

    def _may_go_on(self) -> bool:
        """Wait until the worker has put all in order; return False when the worker is gone."""
        while word := self._bell.recv(1):
            if word == GO:
                return True
        return False

    def _carry_out(self, payload: memoryview, *, as_data: bool) -> tuple[bool, bytes]:
        try:
            if payload[:1] == SHARED:
                (size,) = SIZE.unpack_from(payload, 1)
                middle = 1 + SIZE.size + size
                function = self._function(bytes(payload[1 + SIZE.size : middle]))
                args, kwargs = pickle.loads(payload[middle:])
            else:
                path, call = pickle.loads(payload)
                _set_path(path)
                function, args, kwargs = pickle.loads(call)
            value = function(*args, **kwargs)
            if not as_data:
                return True, pickled(value)
        except BaseException as error:  # whatever it is, it is the caller's to see
            if not as_data:
                return False, pickled_error(error)
            from bursar.worker.call_results import described_error

            return False, described_error(error)
        from bursar.worker.call_results import value_as_data  # what it takes, pickles do not need

        return value_as_data(value)

    def _function(self, shared: bytes) -> Any:
        """Return the function of a call's first part, unpickled once."""
        known = self._functions.get(shared)
        if known is not None:
            _set_path(known[0])
            return known[1]
        path, function = pickle.loads(shared)
        _set_path(path)
        loaded = pickle.loads(function)
        if len(self._functions) >= _MOST_FUNCTIONS:
            self._functions.clear()
        self._functions[shared] = path, loaded
        return loaded


def _set_path(path: list[str]) -> None:
    # In front, so that the call finds the caller's modules before others of the same name.
    if sys.path[: len(path)] != path:
        sys.path[:] = path + [p for p in sys.path if p not in path]


class ProcessVariables:
    """
    Environment variables of this process, which are the same for each call but for its own.

    To set all of them anew takes longer than an empty call. So what C programs see, the array
    ``environ`` of pointers, is remembered: any change of a variable, by ``os.environ`` or below it,
    puts other pointers there.
    """

    def __init__(self) -> None:
        self._environ = os.environ
        self._bytes: MutableMapping[bytes, bytes] = os.environb
        # The dictionary in which os.environ keeps what Python knows of them.
        self._known: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self._pointers = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
        self._base: dict[bytes, bytes] = {}
        self._wanted: dict[bytes, bytes] = {}
        self._seen: tuple[int | None, bytes] = (None, b"")

    def set_base(self, variables: dict[str, str]) -> None:
        """Set the variables that every call gets."""
        self._base = _encoded(variables)
        self._wanted = {}

    def prepare(self, task: int, processors: int, more: dict[str, str]) -> None:
        """Have exactly the variables of the next call, whatever the last one did to them."""
        # The call before may have put another object in its place.
        os.environ = self._environ  # noqa: B003 (the same object as at the start)
        number = b"%d" % task
        if (
            not more
            and self._wanted
            and self._known == self._wanted
            and self._wanted[_PROCESSORS] == b"%d" % processors
            and self._look() == self._seen
        ):
            self._bytes[_TASK] = self._wanted[_TASK] = number
            self._seen = self._look()
            return
        own = {_TASK: number, _PROCESSORS: b"%d" % processors}
        wanted = {**self._base, **own, **_encoded(more)}
        variables = self._bytes
        # In bytes, which need not be encoded, and without clear(), which takes time quadratic in
        # the number of variables.
        for name in [name for name in variables if name not in wanted]:
            del variables[name]
        variables.update(wanted)
        self._wanted = {} if more else wanted
        self._seen = self._look()

    def _look(self) -> tuple[int | None, bytes]:
        """Return where C keeps the variables, and the pointers there, with the null at the end."""
        place = self._pointers.value
        if place is None:
            return None, b""
        return place, ctypes.string_at(place, 8 * (len(self._known) + 1))


_TASK, _PROCESSORS = b"BURSAR_TASK", b"BURSAR_PROCESSORS"


def _encoded(environment: dict[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def serve() -> None:
    """Carry out calls, in a process that was started as a program, until the worker is gone."""
    Callee(socket.socket(fileno=CALLS), socket.socket(fileno=BELL)).run()


def serve_template() -> None:
    """
    Fork callees until the worker is gone, from a process that has loaded what calls need.

    A forked callee takes a millisecond to start, and shares the memory of what is loaded. Each
    message brings the ends of one callee, and is answered by its process id, or by a negative
    error number. The process in between ends at once, so that the callee becomes a child of the
    worker, which adopts orphans.
    """
    import argparse
    import gc
    import json
    import logging
    import pathlib
    import random
    import traceback

    # What makes functions that are pickled by value, and what many functions' modules load.
    import cloudpickle  # noqa: F401

    del argparse, json, logging, pathlib, random, traceback

    channel = socket.socket(fileno=CALLS)
    channel.set_inheritable(False)
    # Counted among the living for ever: a collection in a callee would write to shared pages.
    gc.collect()
    gc.freeze()
    while True:
        _, fds, _, _ = socket.recv_fds(channel, 1, 2)
        if not fds:
            return
        try:
            middle = os.fork()
        except OSError as error:
            channel.send(PROCESS.pack(-(error.errno or 1)))
        else:
            if not middle:
                if _is_forked(channel):
                    channel.close()
                    Callee(*(socket.socket(fileno=fd) for fd in fds)).run()
                    return
                os._exit(0)
            os.waitpid(middle, 0)
        for fd in fds:
            os.close(fd)


PROCESS = struct.Struct("<q")
"""A template's answer: the id of a callee's process, or the number of an error, negative."""


def _is_forked(channel: socket.socket) -> bool:
    """Fork once more, and tell the worker in the process in between; return True in the callee."""
    try:
        pid = os.fork()
    except OSError as error:
        channel.send(PROCESS.pack(-(error.errno or 1)))
        return False
    # Both do it: neither the worker nor the callee goes on before the callee leads a group.
    if pid:
        os.setpgid(pid, pid)
        channel.send(PROCESS.pack(pid))
        return False
    os.setpgid(0, 0)
    return True
