"""
Bounds on worker messages: a worker with a valid token cannot exhaust memory or disk.

Whoever has the token of a lease can send any message. No message may cost the service its memory
or its disk.
"""

from collections.abc import Sequence

import msgspec

from bursar.dispatch.wire import BATCH_SIZE, LONGEST_REASON, ProtocolError
from bursar.engine.core import SPILL
from bursar.model.task import Outcome
from bursar.worker.unacknowledged import MOST_OUTCOMES

LARGEST_OUTCOME = 64 * 1024 * 1024
"""Bytes of one outcome: the value of a call and its streams, or the envelope of a sealed task."""

LARGEST_VALUE = LARGEST_OUTCOME - 1024 * 1024
"""Bytes of the largest value that workers may send; streams and reason fit beside the value."""

WORKER_FRAME = LARGEST_OUTCOME + BATCH_SIZE
"""Bytes of a worker's largest frame: a large outcome travels alone, small ones in batches."""


def bound_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """
    Cut the streams and reasons of outcomes to the sizes that our workers send.

    Raises
    ------
    ProtocolError
        When there are more outcomes than a worker keeps, or a value is too large.
    """
    if len(outcomes) > MOST_OUTCOMES:
        raise ProtocolError(f"{len(outcomes)} outcomes at once are more than a worker keeps")
    return [_bound_outcome(outcome) for outcome in outcomes]


def _bound_outcome(outcome: Outcome) -> Outcome:
    # Refused and not cut: half of a value is no value. Our workers are told the limit in the
    # welcome, so only others send more.
    if len(outcome.value) > LARGEST_VALUE:
        raise ProtocolError(
            f"a value of {len(outcome.value)} bytes is larger than the {LARGEST_VALUE} allowed"
        )
    # The usual case copies nothing.
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
