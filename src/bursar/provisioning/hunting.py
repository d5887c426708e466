"""
Requests in the shape of what a schedule leaves free: our own way to acquire processors.

A plain user sees when running jobs end at the latest, and so which processors are free for how
long. What fits there starts at once, by backfilling, whatever waits in the queue. The rest is
asked for in pieces, so that no processor waits for another.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bursar.provisioning.view import Allocation, Hole, SiteView

SLACK = 5.0
"""Seconds by which a request is shorter than its hole: it takes so long to get there."""

MINUTE = 60.0
"""Schedulers count in them and round up."""

CLASSES = 6
"""Lengths of holes that are told apart, each half of the one before."""

PIECES = 16
"""Requests for what nobody knows when it will be free, at the most."""

SPLIT = 4
"""Requests for processors that become free together: jobs end sooner than was said, one by one."""

_NOW = 1.0
"""Seconds within which a hole that opens is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    One request.

    Parameters
    ----------
    processors, seconds
        How many and how long.
    least_seconds, least_processors
        See :class:`bursar.provisioning.view.Ask`.
    fits
        Whether it should start at once.
    """

    processors: int
    seconds: float
    least_seconds: float | None = None
    least_processors: int | None = None
    fits: bool = False


Choice = Callable[[int, tuple[float, ...]], float]
"""Of several lengths, the one to ask for with so many processors."""


def longest_of(processors: int, lengths: tuple[float, ...]) -> float:
    """Who knows nothing of waits asks for as long as is wanted."""
    return lengths[0]


def hunted(
    site: SiteView,
    processors: int,
    *,
    unit: int,
    least: float,
    wanted: float,
    claims: Sequence[Shape] = (),
    most: int,
    choose: Choice = longest_of,
) -> list[Shape]:
    """
    The requests for so many processors; what should start at once comes first.

    Parameters
    ----------
    site
        With its holes, or its free processors, where they are known.
    processors
        How many, a multiple of the unit.
    unit
        Processors that are of use only together.
    least, wanted
        Seconds that are worth the while, and that there is work for.
    claims
        Requests that were made since the site was looked at, and take of its holes.
    most
        Requests, at the most.
    choose
        How long to ask for what has to wait, where nobody knows when it would start.

    Returns
    -------
    list of Shape
        They sum to the processors, or to less where there are too few requests for it.
    """
    open_now = free_now(site, claims)
    if open_now is None:
        return _blind(site, processors, unit, least, wanted, most, choose)
    made: list[Shape] = []
    left = processors
    for seconds, count in _classes(open_now, least, wanted):
        size = min(left, count) // unit * unit
        if size and len(made) < most:
            made.append(_shape(site, size, seconds, least, fits=True))
            left -= size
    made.extend(_waiting(site, left, unit, least, wanted, most - len(made), choose))
    return made


def free_now(site: SiteView, claims: Iterable[Shape] = ()) -> list[tuple[float, int]] | None:
    """
    Seconds and processors of what is open now, the longest first; None where nobody knows.
    """
    if site.holes:
        holes = [(h.seconds, h.processors) for h in site.holes if h.start <= _NOW]
    elif site.free is not None:
        holes = [(math.inf, site.free)]
    else:
        return None
    holes.sort(reverse=True)
    for claim in claims:
        _take(holes, claim.processors, claim.least_seconds or claim.seconds)
    return holes


def _take(holes: list[tuple[float, int]], processors: int, seconds: float) -> bool:
    """
    Takes of holes what a request will: of the shortest that it fits into.

    False, and nothing is taken, when it does not fit as a whole: then it waits, and others go
    ahead of it.
    """
    fits = 0
    while fits < len(holes) and holes[fits][0] >= seconds:
        fits += 1
    if sum(count for _, count in holes[:fits]) < processors:
        return False
    for i in range(fits - 1, -1, -1):
        length, count = holes[i]
        taken = min(processors, count)
        holes[i] = (length, count - taken)
        processors -= taken
        if not processors:
            break
    return True


def moves(site: SiteView, waiting: Iterable[Allocation], least: float) -> list[Allocation]:
    """
    Requests that wait although others in their place, shorter or smaller, would start at once.

    One that fits as it is will start, whatever it takes to get there, and takes its hole.

    Parameters
    ----------
    waiting
        At the site. Of those that do not fit, the last is the first to move.
    least
        Seconds that are worth the while.
    """
    holes = free_now(site) if site.holes else None
    if holes is None:
        return []
    misfits = [one for one in waiting if not _take(holes, one.processors, one.seconds)]
    left = sum(count for seconds, count in holes if fitting(seconds, least) >= least)
    chosen = []
    for one in sorted(misfits, key=lambda a: (-a.asked, -a.processors)):
        if one.processors <= left:
            left -= one.processors
            chosen.append(one)
    return chosen


def halves(processors: int, unit: int = 1) -> list[int]:
    """
    Half of them, half of the rest, and so on: they sum to the processors.

    Much comes with the first request where there is room, and little waits with the last.
    """
    made = []
    while processors:
        size = -(-(processors // unit) // 2) * unit
        made.append(size)
        processors -= size
    return made


def evenly(processors: int, unit: int, pieces: int) -> list[int]:
    """So many pieces of about the same size, or fewer, the small ones first."""
    count = min(processors // unit, pieces)
    if count < 1:
        return []
    size, more = divmod(processors // unit, count)
    return [size * unit] * (count - more) + [(size + 1) * unit] * more


def fitting(hole: float, wanted: float) -> float:
    """Seconds to ask for in a hole that is so long; a request may start late and is rounded up."""
    if hole >= wanted + SLACK + MINUTE:
        return wanted
    seconds = hole - SLACK
    return min(wanted, math.floor(seconds / MINUTE) * MINUTE if seconds >= MINUTE else seconds)


def _classes(
    open_now: Iterable[tuple[float, int]], least: float, wanted: float
) -> list[tuple[float, int]]:
    """Holes of about the same length as one, the longest first; those too short are left out."""
    classes: dict[int, tuple[float, int]] = {}
    for hole, count in open_now:
        seconds = fitting(hole, wanted)
        if seconds < least or not count:
            continue
        step = 0 if seconds >= wanted else 1 + int(math.log2(wanted / seconds) * 2)
        shortest, total = classes.get(min(step, CLASSES), (seconds, 0))
        classes[min(step, CLASSES)] = (min(shortest, seconds), total + count)
    return [classes[step] for step in sorted(classes)]


def _waiting(
    site: SiteView,
    processors: int,
    unit: int,
    least: float,
    wanted: float,
    most: int,
    choose: Choice,
) -> list[Shape]:
    """What does not start at once: as processors become free, and else in halves, small first."""
    made: list[Shape] = []
    for hole in _coming(site.holes, least):
        size = min(processors, hole.processors) // unit * unit
        if not size or len(made) + 1 >= most:
            continue
        for piece in evenly(size, unit, min(SPLIT, most - len(made) - 1)):
            made.append(_shape(site, piece, fitting(hole.seconds, wanted), least))
            processors -= piece
    lengths = _lengths(least, wanted)
    for size in evenly(processors, unit, min(PIECES, most - len(made))):
        made.append(_shape(site, size, choose(size, lengths), least))
    return made


def _coming(holes: Iterable[Hole], least: float) -> list[Hole]:
    later = [h for h in holes if h.start > _NOW and fitting(h.seconds, math.inf) >= least]
    return sorted(later, key=lambda h: (h.start, -h.seconds))


def _blind(
    site: SiteView,
    processors: int,
    unit: int,
    least: float,
    wanted: float,
    most: int,
    choose: Choice,
) -> list[Shape]:
    """Where nobody says what is free: as much as there is, or halves, the largest first."""
    nodes = site.per_node if site.node_ranges and unit == 1 else None
    if nodes is not None and most and processors >= 2 * nodes:
        whole = processors // nodes * nodes
        made = [_shape(site, whole, wanted, least, least_processors=nodes)]
        rest = processors - whole
        return [*made, *_blind_halves(site, rest, unit, least, wanted, most - 1, choose)]
    return _blind_halves(site, processors, unit, least, wanted, most, choose)


def _blind_halves(
    site: SiteView,
    processors: int,
    unit: int,
    least: float,
    wanted: float,
    most: int,
    choose: Choice,
) -> list[Shape]:
    pieces = halves(processors, unit)
    if len(pieces) > most:
        pieces = [*pieces[: most - 1], sum(pieces[most - 1 :])] if most else []
    lengths = _lengths(least, wanted)
    return [_shape(site, size, choose(size, lengths), least) for size in pieces]


def _lengths(least: float, wanted: float) -> tuple[float, ...]:
    """What is wanted, half of it, and so on down to the least."""
    made = [wanted]
    while len(made) < CLASSES and made[-1] / 2 >= least:
        made.append(float(math.ceil(made[-1] / 2)))
    return tuple(made)


def _shape(
    site: SiteView,
    processors: int,
    seconds: float,
    least: float,
    *,
    least_processors: int | None = None,
    fits: bool = False,
) -> Shape:
    ranged = site.time_ranges and least < seconds
    return Shape(
        processors=processors,
        seconds=seconds,
        least_seconds=least if ranged else None,
        least_processors=least_processors,
        fits=fits,
    )
