"""
The state machine of a batch-scheduled cluster: arrays and numbers only.

The same loop, :func:`advance`, runs a whole trace at once and moves a live
state forward step by step. Its state:

``k``, integers (indices ``K_*``)
    ``K_NEXT`` the next job to be submitted, ``K_FRONT`` where in its array the queue begins and
    ``K_QUEUE`` how many wait, ``K_HEAP`` how many events are due, ``K_PUSHED`` how many ever were,
    ``K_LOW`` and ``K_HIGH`` the profile's part of its arrays that counts, ``K_RESERVATIONS`` how
    many advance reservations there are, ``K_AGAIN`` whether the policy must look at the present
    moment again.
jobs
    ``submit``, ``width``, ``estimate``, ``runtime`` as given; ``start``,
    ``finish``, ``expected`` (end by the estimate) and ``promise`` (first start
    promised) as they come to be, NaN before; ``killed``.
``queue``, ``reserved``
    Waiting jobs in order of submission, and the start each is promised now.
    Under conservative backfilling they begin at 0; otherwise those that start
    from the front only move it, so a long queue costs nothing.
``heap_time``, ``heap_event``, ``heap_order``
    A heap of coming events, earliest first, of equal ones the first that was added: a job's number
    for its end, and ``~number`` for the moment its estimate is up while it still runs.
``times``, ``free``
    The profile of free processors: :mod:`bursar.cluster.profile_kernels`. It holds
    running jobs to their expected ends, advance reservations, and, under
    conservative backfilling, what waiting jobs are promised.

Times are floats and compared exactly: whole seconds, as logs have them, are
exact, so ties are ties.
"""

import math

import numpy as np
import numpy.typing as npt

from bursar.cluster.profile_kernels import (
    K_AGAIN,
    K_FRONT,
    K_HEAP,
    K_LOW,
    K_NEXT,
    K_PUSHED,
    K_QUEUE,
    K_RESERVATIONS,
    change,
    earliest,
    least_free,
    trim,
)
from bursar.compiling import compiled

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


FCFS, EASY, CONSERVATIVE = range(3)


# The heap of events.


@compiled
def _before(heap_time: FloatArray, heap_order: IntArray, a: int, b: int) -> bool:
    if heap_time[a] != heap_time[b]:
        return bool(heap_time[a] < heap_time[b])
    return bool(heap_order[a] < heap_order[b])


@compiled
def _swap(
    heap_time: FloatArray, heap_event: IntArray, heap_order: IntArray, a: int, b: int
) -> None:
    heap_time[a], heap_time[b] = heap_time[b], heap_time[a]
    heap_event[a], heap_event[b] = heap_event[b], heap_event[a]
    heap_order[a], heap_order[b] = heap_order[b], heap_order[a]


@compiled
def push(
    k: IntArray,
    heap_time: FloatArray,
    heap_event: IntArray,
    heap_order: IntArray,
    time: float,
    event: int,
) -> None:
    """Adds an event."""
    i = k[K_HEAP]
    k[K_HEAP] += 1
    heap_time[i], heap_event[i], heap_order[i] = time, event, k[K_PUSHED]
    k[K_PUSHED] += 1
    while i:
        above = (i - 1) // 2
        if _before(heap_time, heap_order, above, i):
            break
        _swap(heap_time, heap_event, heap_order, i, above)
        i = above


@compiled
def pop(k: IntArray, heap_time: FloatArray, heap_event: IntArray, heap_order: IntArray) -> int:
    """Remove the earliest event; of several at one time, the first that was added."""
    event = heap_event[0]
    k[K_HEAP] -= 1
    count = k[K_HEAP]
    _swap(heap_time, heap_event, heap_order, 0, count)
    i = 0
    while True:
        below = 2 * i + 1
        if below >= count:
            break
        if below + 1 < count and _before(heap_time, heap_order, below + 1, below):
            below += 1
        if _before(heap_time, heap_order, i, below):
            break
        _swap(heap_time, heap_event, heap_order, i, below)
        i = below
    return int(event)


@compiled
def remove(
    k: IntArray, heap_time: FloatArray, heap_event: IntArray, heap_order: IntArray, job: int
) -> None:
    """Remove the event of a job from anywhere in the heap."""
    i = 0
    while i < k[K_HEAP] and heap_event[i] != job and heap_event[i] != ~job:
        i += 1
    if i == k[K_HEAP]:
        return
    # Raised to the top by force, then popped: one way to restore the heap instead of two.
    while i:  # what is above it moves down a step, and it is the first
        above = (i - 1) // 2
        _swap(heap_time, heap_event, heap_order, i, above)
        i = above
    pop(k, heap_time, heap_event, heap_order)


# Starting jobs.


@compiled
def _begin(
    k: IntArray,
    job: int,
    now: float,
    extend: bool,
    estimate: FloatArray,
    runtime: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    expected: FloatArray,
    killed: BoolArray,
    heap_time: FloatArray,
    heap_event: IntArray,
    heap_order: IntArray,
) -> None:
    """Start a job; the end of the job, or of its estimate, becomes an event."""
    start[job] = now
    expected[job] = now + estimate[job]
    if runtime[job] <= estimate[job]:
        finish[job] = now + runtime[job]
        push(k, heap_time, heap_event, heap_order, finish[job], job)
    # The estimate's end is the event, not the job's: until then nobody may know that the job will
    # outlive it.
    elif extend:
        finish[job] = now + runtime[job]
        push(k, heap_time, heap_event, heap_order, expected[job], ~job)
    else:
        finish[job] = expected[job]
        killed[job] = True
        push(k, heap_time, heap_event, heap_order, finish[job], job)


@compiled
def _start_in_order(
    k: IntArray,
    now: float,
    backfill: bool,
    extend: bool,
    width: IntArray,
    estimate: FloatArray,
    runtime: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    expected: FloatArray,
    killed: BoolArray,
    queue: IntArray,
    reserved: FloatArray,
    heap_time: FloatArray,
    heap_event: IntArray,
    heap_order: IntArray,
    times: FloatArray,
    free: IntArray,
) -> None:
    """Start jobs by FCFS, and by EASY where ``backfill`` is set."""
    count = k[K_QUEUE]
    front = k[K_FRONT]
    first = 0
    while first < count:
        job = queue[front + first]
        if free[k[K_LOW]] < width[job]:
            break
        # Processors that are free now may be reserved before the estimate is up.
        if k[K_RESERVATIONS] and (
            least_free(k, times, free, now, now + estimate[job]) < width[job]
        ):
            break
        change(k, times, free, now, now + estimate[job], -width[job])
        _begin(
            k, job, now, extend, estimate, runtime, start, finish, expected, killed,
            heap_time, heap_event, heap_order,
        )  # fmt: skip
        first += 1
    front += first
    count -= first
    k[K_FRONT] = front
    k[K_QUEUE] = count
    if not backfill or count < 2 or free[k[K_LOW]] == 0:
        return

    # The first that waits gets the earliest window there is; nobody may take it.
    head = queue[front]
    shadow = earliest(k, times, free, width[head], estimate[head], now, math.inf)
    # Without reservations ever more is free as time goes by, so one look at the
    # shadow time tells how much the head leaves from there on.
    simple = k[K_RESERVATIONS] == 0
    spare = 0
    if simple:
        spare = least_free(k, times, free, shadow, shadow) - width[head]
    else:
        change(k, times, free, shadow, shadow + estimate[head], -width[head])
    started = 0
    for i in range(1, count):
        job = queue[front + i]
        fits = width[job] <= free[k[K_LOW]]
        if fits:
            end = now + estimate[job]
            if simple:
                fits = end <= shadow or width[job] <= spare
                # It runs on beside the head, so the next ones find less to spare.
                if fits and end > shadow:
                    spare -= width[job]
            else:
                fits = least_free(k, times, free, now, end) >= width[job]
        if fits:
            change(k, times, free, now, end, -width[job])
            _begin(
                k, job, now, extend, estimate, runtime, start, finish, expected, killed,
                heap_time, heap_event, heap_order,
            )  # fmt: skip
            started += 1
        elif started:
            # Those that stay close the ranks in place, in their order.
            queue[front + i - started] = job
    k[K_QUEUE] = count - started
    if not simple:
        change(k, times, free, shadow, shadow + estimate[head], width[head])


# Conservative backfilling.


@compiled
def promise_earliest(
    k: IntArray, times: FloatArray, free: IntArray, width: int, length: float, now: float
) -> float:
    """Take the earliest window that breaks no promise; return the window's start."""
    begin = earliest(k, times, free, width, length, now, math.inf)
    change(k, times, free, begin, begin + length, -width)
    return begin


@compiled
def compress(
    k: IntArray,
    now: float,
    width: IntArray,
    estimate: FloatArray,
    queue: IntArray,
    reserved: FloatArray,
    times: FloatArray,
    free: IntArray,
) -> None:
    """Move each waiting job, in order, to the earliest start; never to a later one."""
    for i in range(k[K_QUEUE]):
        old = reserved[i]
        # Due now: it starts at this moment in any case.
        if old <= now:
            continue
        job = queue[i]
        # The job's own promise is still in the profile: `old` tells where that room is its own,
        # so that it need not be taken out and put back for the many jobs that cannot move.
        new = earliest(k, times, free, width[job], estimate[job], now, old)
        if new < old:
            change(k, times, free, old, old + estimate[job], width[job])
            change(k, times, free, new, new + estimate[job], -width[job])
            reserved[i] = new


@compiled
def withdraw_promises(
    k: IntArray,
    width: IntArray,
    estimate: FloatArray,
    queue: IntArray,
    reserved: FloatArray,
    times: FloatArray,
    free: IntArray,
) -> None:
    """Take the promises of waiting jobs out of the profile."""
    for i in range(k[K_QUEUE]):
        job = queue[i]
        change(k, times, free, reserved[i], reserved[i] + estimate[job], width[job])


@compiled
def promise_again(
    k: IntArray,
    now: float,
    width: IntArray,
    estimate: FloatArray,
    queue: IntArray,
    reserved: FloatArray,
    times: FloatArray,
    free: IntArray,
) -> None:
    """Gives every waiting job a new promise, in order."""
    for i in range(k[K_QUEUE]):
        job = queue[i]
        reserved[i] = promise_earliest(k, times, free, width[job], estimate[job], now)


@compiled
def _start_reserved(
    k: IntArray,
    now: float,
    extend: bool,
    estimate: FloatArray,
    runtime: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    expected: FloatArray,
    killed: BoolArray,
    queue: IntArray,
    reserved: FloatArray,
    heap_time: FloatArray,
    heap_event: IntArray,
    heap_order: IntArray,
) -> float:
    """Start the jobs promised for now; return the next promised start."""
    upcoming = math.inf
    kept = 0
    for i in range(k[K_QUEUE]):
        job = queue[i]
        if reserved[i] <= now:
            _begin(
                k, job, now, extend, estimate, runtime, start, finish, expected, killed,
                heap_time, heap_event, heap_order,
            )  # fmt: skip
        else:
            upcoming = min(upcoming, reserved[i])
            queue[kept], reserved[kept] = job, reserved[i]
            kept += 1
    k[K_QUEUE] = kept
    return upcoming


# The loop.


@compiled
def advance(
    k: IntArray,
    until: float,
    now: float,
    policy: int,
    singly: bool,
    compressing: bool,
    extend: bool,
    submit: FloatArray,
    width: IntArray,
    estimate: FloatArray,
    runtime: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    expected: FloatArray,
    promise: FloatArray,
    killed: BoolArray,
    queue: IntArray,
    reserved: FloatArray,
    heap_time: FloatArray,
    heap_event: IntArray,
    heap_order: IntArray,
    times: FloatArray,
    free: IntArray,
    jobs: int,
    extra: FloatArray,
) -> float:
    """
    Simulate all events up to and at ``until``.

    At one moment: jobs end, or are extended or killed; reservations end; jobs
    are submitted, in order; then the policy starts what may start, once.

    Parameters
    ----------
    now
        The present time.
    policy
        ``FCFS``, ``EASY`` or ``CONSERVATIVE``.
    singly
        The policy runs after every single event instead: submissions come
        first, then ends in the order in which the jobs started.
    compressing
        Conservative: an early end lets the waiting jobs move forward.
    extend
        A job that outlives its estimate goes on, its estimate doubled as often
        as it takes; otherwise it is killed at the end of it.
    jobs
        How many there are in the arrays.
    extra
        Moments at which room comes back by itself (reservations end), ascending, infinity last.

    Returns
    -------
    float
        The time of the last event.
    """
    upcoming = math.inf
    if policy == CONSERVATIVE:
        for i in range(k[K_QUEUE]):
            upcoming = min(upcoming, reserved[i])
    # Reservations that have ended at or before now have woken the policy already.
    wake = 0
    while extra[wake] <= now:
        wake += 1
    while True:
        moment = min(upcoming, extra[wake])
        if k[K_HEAP]:
            moment = min(moment, heap_time[0])
        if k[K_NEXT] < jobs:
            moment = min(moment, max(now, submit[k[K_NEXT]]))
        if k[K_AGAIN]:
            moment = now
            k[K_AGAIN] = 0
        if moment > until or moment == math.inf:
            break
        now = moment
        trim(k, times, free, now)
        while extra[wake] <= now:
            wake += 1
        early = False
        overrun = False
        # More than there can be events at a moment: no limit.
        left = len(submit) + 1
        if singly:
            # As in pyss: one event, then the policy. A submission of this moment comes before an
            # end of it.
            left = 0 if k[K_NEXT] < jobs and submit[k[K_NEXT]] <= now else 1
        while k[K_HEAP] and heap_time[0] <= now and left:
            left -= 1
            event = pop(k, heap_time, heap_event, heap_order)
            if event >= 0:
                if expected[event] > now:
                    change(k, times, free, now, expected[event], width[event])
                    early = True
                continue
            job = ~event
            # A job that runs on cannot be moved, waiting ones can: all promises leave the
            # profile, the job takes its processors, then promises are made anew. Once for all
            # that outlive their estimates at this moment.
            if policy == CONSERVATIVE and not overrun:
                withdraw_promises(k, width, estimate, queue, reserved, times, free)
            overrun = True
            end = start[job] + 2 * (expected[job] - start[job])
            if least_free(k, times, free, now, end) < width[job]:
                finish[job] = now  # an advance reservation is in the way
                killed[job] = True
                continue
            change(k, times, free, now, end, -width[job])
            expected[job] = end
            if finish[job] <= end:
                push(k, heap_time, heap_event, heap_order, finish[job], job)
            else:
                push(k, heap_time, heap_event, heap_order, end, event)
        if policy == CONSERVATIVE:
            if overrun:
                promise_again(k, now, width, estimate, queue, reserved, times, free)
            elif early and compressing:
                compress(k, now, width, estimate, queue, reserved, times, free)
        while k[K_NEXT] < jobs and submit[k[K_NEXT]] <= now:
            job = k[K_NEXT]
            k[K_NEXT] += 1
            waiting = k[K_FRONT] + k[K_QUEUE]
            queue[waiting] = job
            reserved[waiting] = math.nan
            if policy == CONSERVATIVE:
                reserved[waiting] = promise_earliest(k, times, free, width[job], estimate[job], now)
                # The first promise; later ones change `reserved` only.
                promise[job] = reserved[waiting]
            k[K_QUEUE] += 1
            if singly:
                break
        if policy == CONSERVATIVE:
            upcoming = _start_reserved(
                k, now, extend, estimate, runtime, start, finish, expected, killed,
                queue, reserved, heap_time, heap_event, heap_order,
            )  # fmt: skip
        elif k[K_QUEUE]:
            _start_in_order(
                k, now, policy == EASY, extend, width, estimate, runtime, start, finish,
                expected, killed, queue, reserved, heap_time, heap_event, heap_order, times, free,
            )  # fmt: skip
    return now
