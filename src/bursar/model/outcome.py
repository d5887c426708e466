"""Outcomes of attempts to run tasks."""

import enum

import msgspec


class Status(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """A step exited with a status other than 0, could not start, or an output is missing."""
    TIMED_OUT = "timed-out"
    """Killed at its wall-time limit."""
    LOST = "lost"
    """Its worker went away."""
    CANCELLED = "cancelled"
    """Stopped on request; it may be tried again without counting as a failure."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    One attempt's end, as the worker reports it.

    Parameters
    ----------
    task
        Index into the workflow's tasks.
    attempt
        1 for the first.
    status
        How it ended.
    exit_code
        Of the last step that ran; negative for a signal; None when none ran.
    start, end
        Seconds since the epoch.
    stdout, stderr
        What it printed, up to the spill limit. Past that, empty, and
        ``stdout_size`` or ``stderr_size`` tell how much lies in the log file.
    stdout_size, stderr_size
        Bytes printed.
    user_seconds, system_seconds
        Processor time of all its processes that were waited for.
    max_rss
        Largest resident set, bytes.
    reason
        One line for people when it did not succeed.
    value
        Result of a call, as data or as a pickle, as the call asks; empty otherwise.
    sealed
        Of a sealed task: an envelope with its exit code, streams, reason and value, which are
        not told otherwise.
    """

    task: int
    attempt: int
    status: Status
    exit_code: int | None = None
    start: float = 0.0
    end: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_size: int = 0
    stderr_size: int = 0
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss: int = 0
    reason: str = ""
    value: bytes = b""
    sealed: bytes = b""
