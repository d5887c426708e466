"""Checks what workers say of attempts: numbers that make sense, times that can have been."""

import math

import msgspec

from bursar.engine.worker_slots import WorkerClaim
from bursar.model.task import Outcome, Status
from bursar.service.engine.instance import Instance

_LONG = 1e12  # seconds; no time is later, and nothing takes longer


def sanitise(outcome: Outcome, now: float) -> Outcome:
    """Return an outcome whose numbers are finite, not negative and in order."""
    # False for NaN and infinities, too: these would spoil every sum that they enter.
    if (
        0.0 <= outcome.start <= outcome.end < _LONG
        and 0.0 <= outcome.user_seconds < _LONG
        and 0.0 <= outcome.system_seconds < _LONG
        and outcome.stdout_size >= 0
        and outcome.stderr_size >= 0
    ):
        return outcome
    start = outcome.start if 0.0 <= outcome.start < _LONG else now
    return msgspec.structs.replace(
        outcome,
        start=start,
        end=outcome.end if start <= outcome.end < _LONG else start,
        user_seconds=_within(outcome.user_seconds),
        system_seconds=_within(outcome.system_seconds),
        stdout_size=max(0, outcome.stdout_size),
        stderr_size=max(0, outcome.stderr_size),
    )


def clamp_times(outcome: Outcome, given: float, now: float) -> Outcome:
    """
    Return an outcome whose times lie between the giving of the task and now, by our clock.

    The host's clock may be wrong, and a worker may report any times: the interval is moved to
    where it can have been, and cut to the time that there was.

    Parameters
    ----------
    given, now
        When the task was given and when the outcome came, seconds since the epoch.
    """
    if given <= outcome.start and outcome.end <= now:
        return outcome
    # The length is kept as far as it fits between the two moments, and moved: a clock that is
    # wrong by minutes still measures seconds well.
    seconds = min(outcome.end - outcome.start, max(0.0, now - given))
    start = min(max(outcome.start, given), now - seconds)
    return msgspec.structs.replace(outcome, start=start, end=min(start + seconds, now))


def _within(seconds: float) -> float:
    return seconds if 0.0 <= seconds < _LONG and not math.isnan(seconds) else 0.0


def outcome_without_worker(
    claim: WorkerClaim[Instance], now: float, reason: str, status: Status = Status.CANCELLED
) -> Outcome:
    """Return the outcome of an attempt for which no worker reported one."""
    return Outcome(
        task=claim.number,
        attempt=claim.attempt,
        status=status,
        start=now,
        end=now,
        reason=reason,
    )
