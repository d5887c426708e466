"""
Shape requests to fit what a schedule leaves free, and choose their walltimes.

A plain user sees when running jobs end at the latest, and so which processors are free for how
long. What fits there starts at once, by backfilling, whatever waits in the queue. The rest is
asked for in pieces, so that no processor waits for another, and not before what fits has begun:
where a scheduler takes long to start a request, a small one that was handed in behind a large one
may overtake it, and take one of its processors.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from bursar.model.allocation import Allocation
from bursar.model.campaign import Workflow
from bursar.model.provisioning import ProcessorDemand
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite

# Choose for how long processors are requested, and how many work in time for a deadline.

MARGIN = 1.25
"""Factor on the estimate that a task may take."""

START = 30.0
"""Seconds of each request that are allowed for the worker's start."""


def useful_processors(
    workflow: Workflow,
    runtimes: Sequence[float],
    until_deadline: float | None,
    slowest: float,
    ended: Collection[int] = (),
) -> int:
    """
    Return how many processors a pool asks for: what the deadline needs, or the widest level.

    Parameters
    ----------
    runtimes
        Seconds at speed 1 of each task of the workflow; 0 where unknown.
    until_deadline
        Seconds; None: there is no deadline.
    slowest
        Least speed of a site.
    ended
        Tasks that are left out.
    """
    level = [0] * len(workflow.tasks)
    widths: Counter[int] = Counter()
    work, longest, widest = 0.0, 0.0, 1
    for number in workflow.order:
        level[number] = max((level[one] + 1 for one in workflow.parents[number]), default=0)
        if number in ended:
            continue
        processors = workflow.tasks[number].processors
        widths[level[number]] += processors
        work += runtimes[number] * processors
        longest, widest = max(longest, runtimes[number]), max(widest, processors)
    most = max(widths.values(), default=0)
    usable = 0.0 if until_deadline is None else until_deadline - START
    if usable <= longest * MARGIN / slowest:
        return most
    return min(most, max(widest, math.ceil(work * MARGIN / (usable * slowest))))


def longest_walltime(site: PoolSite) -> float:
    """Return the seconds of a site's longest allocation, by our rules and the queue's."""
    return min(site.rules.longest, math.inf if site.longest is None else site.longest)


def mean_seconds(demand: ProcessorDemand, site: PoolSite) -> float:
    """Return the mean seconds of waiting tasks at a site; 0 while none waits."""
    return demand.work / demand.processors / site.speed if demand.processors else 0.0


def has_time(demand: ProcessorDemand, site: PoolSite) -> bool:
    """
    Whether the longest task fits into the longest allocation, estimates taken without a margin.
    """
    return not site.batch or demand.longest / site.speed <= longest_walltime(site)


def wanted_seconds(demand: ProcessorDemand, site: PoolSite, processors: int) -> float:
    """
    Return the seconds to request so that these processors do all the work that waits.

    So each runs as many tasks as there are for it, and these share the wait for it (DRP section
    3.2, at its end). Never less than the longest task needs nor than the rules' shortest, and
    never more than the rules and the queue allow. Tasks that are to come count as long as those
    that wait. Infinite of a site without a queue.

    Parameters
    ----------
    processors
        Processors that will share the work.
    """
    if not site.batch:
        return math.inf
    if not demand.tasks:  # kept for tasks to come
        return longest_walltime(site)
    work = demand.work * (demand.tasks + demand.later) / demand.tasks
    share = work * MARGIN / (site.speed * max(processors, 1)) + START
    return _bounded(max(share, _longest(demand, site)), site)


def least_seconds(demand: ProcessorDemand, site: PoolSite, wanted: float) -> float:
    """
    Return the seconds below which an allocation is not worth its wait: what the longest task needs.

    Parameters
    ----------
    wanted
        Upper bound of the result; see :func:`wanted_seconds`.
    """
    if not site.batch:
        return math.inf
    return min(_bounded(_longest(demand, site), site), wanted)


def least_in_window(demand: ProcessorDemand, site: PoolSite, wanted: float) -> float:
    """
    Return the seconds below which a backfill window is too short to be requested.

    The longest task's estimate counts as it is, without the margin of :func:`least_seconds`: that
    would leave holes empty into which a task fits.

    Parameters
    ----------
    wanted
        See :func:`wanted_seconds`; the result is never more.
    """
    if not site.batch:
        return math.inf
    return min(_bounded(demand.longest / site.speed + START, site), wanted)


def short_for_deadline(
    demand: ProcessorDemand,
    allocations: Iterable[Allocation],
    speeds: dict[str, float],
    left: float,
) -> int:
    """
    Return how many processors are missing for the work to be done in time; not negative.

    Work that waits and is to come, with a margin, less what the processors at hand can do until
    then. Where even the longest task alone is late, every processor helps: as many as waiting
    tasks hold.

    Parameters
    ----------
    allocations
        Allocations that work on it: held or waiting, without those being released.
    speeds
        Work per second of each site, by name.
    left
        Seconds to the deadline.
    """
    if not demand.tasks:
        return 0
    slowest = min(speeds.values(), default=1.0)
    usable = left - START
    if usable <= demand.longest * MARGIN / slowest:
        return demand.processors
    work = demand.work * (demand.tasks + demand.later) / demand.tasks * MARGIN
    for one in allocations:  # to the deadline: another takes the place of one that ends before
        work -= one.processors * usable * speeds.get(one.site, slowest)
    # What runs now takes its share of these; half of it is done on average.
    work += demand.running * demand.work / demand.processors / 2
    return max(0, math.ceil(work / (usable * slowest)))


def _longest(demand: ProcessorDemand, site: PoolSite) -> float:
    return demand.longest * MARGIN / site.speed + START


def _bounded(seconds: float, site: PoolSite) -> float:
    most = longest_walltime(site)
    return min(max(float(math.ceil(seconds)), site.rules.shortest), most)


# Shape requests to fit what a schedule leaves free: our own way to acquire processors.

SLACK = 5.0
"""Seconds by which a request is shorter than the window, to allow for submission."""

MINUTE = 60.0
"""Seconds of a minute, the unit to which schedulers round limits up."""

CLASSES = 6
"""Number of classes of window lengths, each half as long as the one before."""

PIECES = 16
"""Most requests for processors whose release time is unknown."""

SPLIT = 4
"""Requests for processors that become free together: jobs end sooner than was said, one by one."""

MOST_PARTS = 16
"""Most parts of a request over several nodes, so that a lost node loses one part only."""

_NOW = 1.0
"""Seconds ahead up to which a window that opens counts as open now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """
    Size and duration of one request.

    Parameters
    ----------
    processors, seconds
        Number of processors, and duration in seconds.
    least_seconds, least_processors
        See :class:`bursar.provisioning.pool_snapshot.AllocationRequest`.
    group
        Number of the submission that the request is an element of, from 1 on; 0: the request is a
        submission of its own. Elements of one submission are alike.
    """

    processors: int
    seconds: float
    least_seconds: float | None = None
    least_processors: int | None = None
    fits: bool = False
    group: int = 0


WalltimeChooser = Callable[[int, tuple[float, ...]], float]
"""Chooses among several lengths the one to request with so many processors."""


def longest_of(processors: int, lengths: tuple[float, ...]) -> float:
    """Return the longest duration, the choice where nothing is known of waits."""
    return lengths[0]


def shape_requests(
    site: PoolSite,
    processors: int,
    *,
    unit: int,
    least: float,
    wanted: float,
    task: float = 0.0,
    claims: Sequence[RequestShape] = (),
    most: int,
    in_parts: bool = True,
    in_halves: bool = False,
    only_fitting: bool = False,
    choose: WalltimeChooser = longest_of,
) -> list[RequestShape]:
    """
    Return the requests for so many processors.

    As long as something should start at once, nothing else is asked for: what has to wait is
    asked for when what fits has begun.

    Parameters
    ----------
    site
        Site, with backfill windows or free processors where known.
    processors
        Number of processors, a multiple of the unit.
    unit
        Processors that are of use only together.
    least, wanted
        Least useful duration, and the duration that there is work for, seconds.
    task
        Seconds of a task in the mean. What is asked for in a hole shorter than ``wanted`` is so
        long that whole tasks fit; 0: as long as the hole.
    claims
        Requests made since the site was observed, which take part of its windows.
    in_parts
        Whether requests may be split at all, into halves or by nodes.
    in_halves
        Whether what fits is asked for in halves, the largest first, rather than as one. Where
        requests take long to start, one that is quicker than the others does not wait for them.
    only_fitting
        Whether to leave out requests that would have to wait.
    choose
        Returns the seconds to request for a waiting request whose start is unknown.

    Returns
    -------
    list of RequestShape
        Requests for all processors, or for fewer: where the number of requests is limited, or
        where some processors have to wait and are not requested yet.
    """
    if not in_parts:
        site, in_halves = replace(site, arrays=False), False
    open_now = free_now(site, claims)
    if open_now is None:
        return _blind(site, processors, unit, least, wanted, most, choose)
    made: list[RequestShape] = []
    left = processors
    for seconds, count in _classes(open_now, least, wanted, task):
        size = min(left, count) // unit * unit
        if not size or len(made) >= most:
            continue
        shape = _shape(site, size, seconds, least, fits=True)
        made.extend(_split(site, shape, unit, most - len(made), in_halves))
        left -= size
    if made or only_fitting:
        return made
    return _waiting(site, left, unit, least, wanted, task, most, choose)


def free_now(site: PoolSite, claims: Iterable[RequestShape] = ()) -> list[tuple[float, int]] | None:
    """
    Seconds and processors of the backfill windows open now, the longest first; None where unknown.
    """
    if site.backfill_windows:
        windows = [(h.duration, h.processors) for h in site.backfill_windows if h.start <= _NOW]
    elif site.free is not None:
        windows = [(math.inf, site.free)]
    else:
        return None
    windows.sort(reverse=True)
    for claim in claims:
        # At the least length: so short it may become, and then fits into windows that it else would
        # not.
        _take(windows, claim.processors, claim.least_seconds or claim.seconds)
    return windows


def _take(windows: list[tuple[float, int]], processors: int, seconds: float) -> bool:
    """
    Take from the windows what a request will take, the shortest fitting windows first.

    Return False and take nothing when the request does not fit as a whole: it then waits, and
    others go ahead of it.
    """
    fits = 0
    while fits < len(windows) and windows[fits][0] >= seconds:
        fits += 1
    if sum(count for _, count in windows[:fits]) < processors:
        return False
    for i in range(fits - 1, -1, -1):
        length, count = windows[i]
        taken = min(processors, count)
        windows[i] = (length, count - taken)
        processors -= taken
        if not processors:
            break
    return True


def requests_to_move(
    site: PoolSite, waiting: Iterable[Allocation], least: float
) -> list[Allocation]:
    """
    Return waiting requests whose place shorter or smaller ones could take and start at once.

    A request that fits as it is will start by itself, and takes its window.

    Parameters
    ----------
    waiting
        Waiting requests of the site. Of those that do not fit, the last moves first.
    least
        Least useful duration, seconds.
    """
    windows = free_now(site) if site.backfill_windows else None
    if windows is None:
        return []
    misfits = [one for one in waiting if not _take(windows, one.processors, one.duration)]
    left = sum(count for seconds, count in windows if fitting(seconds, least) >= least)
    chosen = []
    for one in sorted(misfits, key=lambda a: (-a.asked, -a.processors)):
        if one.processors <= left:
            left -= one.processors
            chosen.append(one)
    return chosen


def _split(
    site: PoolSite, shape: RequestShape, unit: int, most: int, in_halves: bool
) -> list[RequestShape]:
    """
    Split a request into halves, and these by nodes, where that costs no submission.

    A job over several nodes ends as a whole when one of them fails. Where the scheduler takes
    arrays, one submission makes many small jobs of it.
    """
    sizes = halves(shape.processors, unit) if in_halves else [shape.processors]
    if len(sizes) > most:
        # Too few requests for all halves: the last one takes the remainder.
        sizes = [*sizes[: most - 1], sum(sizes[most - 1 :])]
    made: list[RequestShape] = []
    for i, size in enumerate(sizes):
        width = _part(site, size, unit)
        copies, rest = divmod(size, width)
        if len(made) + copies + bool(rest) + len(sizes) - i - 1 > most:
            width, copies, rest = size, 1, 0
        group = i + 1 if copies > 1 else 0
        made.extend([replace(shape, processors=width, group=group)] * copies)
        if rest:
            made.append(replace(shape, processors=rest))
    return made


def _part(site: PoolSite, processors: int, unit: int) -> int:
    """Return the processors of each part of a request: one node, or as few nodes as possible."""
    node = (site.per_node or 0) // unit * unit
    if not site.arrays or not node or processors <= node:
        return processors
    return math.ceil(processors / node / MOST_PARTS) * node


def halves(processors: int, unit: int = 1) -> list[int]:
    """
    Split processors into half, half of the rest, and so on.

    If there is room, the first request brings many processors, and few wait with the last.
    """
    made = []
    while processors:
        size = -(-(processors // unit) // 2) * unit
        made.append(size)
        processors -= size
    return made


def evenly(processors: int, unit: int, pieces: int) -> list[int]:
    """Split processors into at most so many pieces of about one size, the small ones first."""
    count = min(processors // unit, pieces)
    if count < 1:
        return []
    size, more = divmod(processors // unit, count)
    return [size * unit] * (count - more) + [(size + 1) * unit] * more


def fitting(window: float, wanted: float) -> float:
    """Return the seconds to request in a window, less slack and rounded down to minutes."""
    rounded = math.ceil(wanted / MINUTE) * MINUTE if math.isfinite(wanted) else wanted
    if window >= rounded + SLACK:
        return wanted
    seconds = window - SLACK
    return min(wanted, math.floor(seconds / MINUTE) * MINUTE if seconds >= MINUTE else seconds)


def whole_tasks(seconds: float, task: float) -> float:
    """
    Shorten a time to whole tasks, with what a worker takes to start.

    An allocation that ends before its hole does because of that is no loss: the rest of the hole
    is too short for a task. A time that no task fits into is returned as it is.
    """
    count = math.floor((seconds - START) / task) if task > 0 else 0
    return min(seconds, float(math.ceil(START + count * task))) if count > 0 else seconds


def _classes(
    open_now: Iterable[tuple[float, int]], least: float, wanted: float, task: float
) -> list[tuple[float, int]]:
    """Merge windows of about one length, the longest first, leaving out windows too short."""
    classes: dict[int, tuple[float, int]] = {}
    for window, count in open_now:
        seconds = _shape_in_window(window, least, wanted, task)
        if seconds < least or not count:
            continue
        step = 0 if seconds >= wanted else 1 + int(math.log2(wanted / seconds) * 2)
        shortest, total = classes.get(min(step, CLASSES), (seconds, 0))
        # The shortest of its class, so that one request fits into every window of the class.
        classes[min(step, CLASSES)] = (min(shortest, seconds), total + count)
    return [classes[step] for step in sorted(classes)]


def _shape_in_window(window: float, least: float, wanted: float, task: float) -> float:
    """Return the seconds to request in a window."""
    seconds = fitting(window, wanted)
    return seconds if seconds >= wanted else max(whole_tasks(seconds, task), min(seconds, least))


def _waiting(
    site: PoolSite,
    processors: int,
    unit: int,
    least: float,
    wanted: float,
    task: float,
    most: int,
    choose: WalltimeChooser,
) -> list[RequestShape]:
    """Shape requests that have to wait: as processors become free, else evenly, small first."""
    made: list[RequestShape] = []
    for window in _coming(site.backfill_windows, least):
        size = min(processors, window.processors) // unit * unit
        # One request is kept for what no window is in sight for.
        if not size or len(made) + 1 >= most:
            continue
        for piece in evenly(size, unit, min(SPLIT, most - len(made) - 1)):
            seconds = _shape_in_window(window.duration, least, wanted, task)
            made.append(_shape(site, piece, seconds, least))
            processors -= piece
    lengths = _lengths(least, wanted)
    for size in evenly(processors, unit, min(PIECES, most - len(made))):
        made.append(_shape(site, size, choose(size, lengths), least))
    return made


def _coming(windows: Iterable[Slot], least: float) -> list[Slot]:
    later = [h for h in windows if h.start > _NOW and fitting(h.duration, math.inf) >= least]
    return sorted(later, key=lambda h: (h.start, -h.duration))


def _blind(
    site: PoolSite,
    processors: int,
    unit: int,
    least: float,
    wanted: float,
    most: int,
    choose: WalltimeChooser,
) -> list[RequestShape]:
    """
    Shape requests for a site whose free processors are unknown.

    The processors are split into halves, the largest first, and these by nodes, into ``most``
    requests at most; ``choose`` picks the duration of each from ``wanted`` and its halves.
    Parameters are those of :func:`shape_requests`.
    """
    shape = _shape(site, processors, wanted, least)
    lengths = _lengths(least, wanted)
    return [
        _shape(site, part.processors, choose(part.processors, lengths), least, group=part.group)
        for part in (_split(site, shape, unit, most, in_halves=True) if most else ())
    ]


def _lengths(least: float, wanted: float) -> tuple[float, ...]:
    """Durations from the one wanted, halved again and again, down to the least."""
    made = [wanted]
    while len(made) < CLASSES and made[-1] / 2 >= least:
        made.append(float(math.ceil(made[-1] / 2)))
    return tuple(made)


def _shape(
    site: PoolSite,
    processors: int,
    seconds: float,
    least: float,
    *,
    fits: bool = False,
    group: int = 0,
) -> RequestShape:
    ranged = site.time_ranges and least < seconds
    return RequestShape(
        processors=processors,
        seconds=seconds,
        least_seconds=least if ranged else None,
        fits=fits,
        group=group,
    )
