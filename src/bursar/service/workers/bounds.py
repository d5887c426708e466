"""
Bounds on worker messages: a worker with a valid token cannot exhaust memory or disk.

Whoever has a lease's secret can say what it likes; that is not to cost the service its memory or
its disk.
"""

from collections.abc import Sequence

import msgspec

from bursar.dispatch.server import SPILL
from bursar.dispatch.wire import BATCH_SIZE, LONGEST_REASON, ProtocolError
from bursar.model.outcome import Outcome
from bursar.worker.unacknowledged import MOST_OUTCOMES

LARGEST_OUTCOME = 64 * 1024 * 1024
"""Bytes of one outcome: a call's value and what was printed, or all that a sealed task made."""

LARGEST_VALUE = LARGEST_OUTCOME - 1024 * 1024
"""Bytes of a call's value that workers are told to send; streams and reason fit beside it."""

WORKER_FRAME = LARGEST_OUTCOME + BATCH_SIZE
"""Bytes of a worker's largest frame: a large outcome travels alone, small ones in batches."""


def bound_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """
    Cut the streams and reasons of outcomes to the size that our workers send.

    Raises
    ------
    ProtocolError
        When there are more than a worker keeps, or a value that it was told not to send.
    """
    if len(outcomes) > MOST_OUTCOMES:
        raise ProtocolError(f"{len(outcomes)} outcomes at once are more than a worker keeps")
    return [_bound_outcome(outcome) for outcome in outcomes]


def _bound_outcome(outcome: Outcome) -> Outcome:
    if len(outcome.value) > LARGEST_VALUE:
        raise ProtocolError(
            f"a value of {len(outcome.value)} bytes is larger than the {LARGEST_VALUE} allowed"
        )
    if (
        len(outcome.stdout) <= SPILL
        and len(outcome.stderr) <= SPILL
        and len(outcome.reason) <= LONGEST_REASON
    ):
        return outcome
    return msgspec.structs.replace(
        outcome,
        stdout=outcome.stdout[:SPILL],
        stderr=outcome.stderr[:SPILL],
        reason=outcome.reason[:LONGEST_REASON],
    )
