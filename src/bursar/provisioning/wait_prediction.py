"""
Bounds on how long requests wait, from the history of waits; the bounds score themselves.

Nobody's estimate of a start is to be trusted, the scheduler's included. What can be said is said
by conformal prediction: if the next wait is as likely as those before to be the longest, or any
other in their order, it is no longer than the k-th smallest of n waits in k of n + 1 cases. Waits
in a queue are not like that, since the load changes. So the share k / (n + 1) is not fixed: it
rises with each bound that fails and falls a little with each that holds, by which nine of ten hold
in the long run whatever the waits do (Gibbs and Candes 2021).

The binomial bounds of Brevik, Nurmi and Wolski (2006), which stood here before, are no less than
the quantile *with a certainty of 90 %*. That is another promise, and a more cautious one: of the
22 waits that it needs at least it takes the longest, which holds in 22 of 23 cases.

References
----------
.. [1] Gibbs, Candes (2021). Adaptive conformal inference under distribution shift. NeurIPS 34,
   section 2.
.. [2] Brevik, Nurmi, Wolski (2006). Predicting bounds on queuing delay for batch-scheduled
   parallel machines. PPoPP '06, section 3.
"""

import heapq
import math
import statistics
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.model.errors import InputError

QUANTILE = 0.9
"""Share of the waits that a bound should hold for."""

MEMORY = 200
"""Waits remembered for each kind of request, at most."""

FEWEST = 9
"""Waits from which on there is a bound: in 9 of 10 cases the next is no longer than all nine."""

GAIN = 0.03
"""Step of the share, as a part of the distance between the credit and :data:`QUANTILE`."""

WIDER = 1.25
"""Factor by which a bound grows for each failure once the longest wait is its base."""

SLOW = 10.0
"""Seconds from a request to its start, above which a site that has room is slow."""

STARTS = 20
"""Last starts by which slowness is judged."""

VERSION = 2
"""Version of the form in which histories are kept."""


@dataclass(slots=True)
class BoundScore:
    """
    Score of the bounds that were given.

    Parameters
    ----------
    given, held
        Number of bounds whose request has begun or waited longer, and of those that held.
    """

    given: int = 0
    held: int = 0

    def __str__(self) -> str:
        share = f"{QUANTILE * 100:.0f} %"
        return f"{share} bounds given {self.given} times, held {self.held}"


@dataclass(slots=True)
class _WaitClass:
    """Waits of similar requests, kept both in order of ending and sorted by length."""

    waits: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, wait: float) -> None:
        self.waits.append(wait)
        insort(self.ordered, wait)
        if len(self.waits) > MEMORY:
            del self.ordered[bisect_left(self.ordered, self.waits.popleft())]

    def covering(self, share: float) -> float:
        """Return the wait that a share of all waits does not exceed; above 1: beyond any wait."""
        count = len(self.ordered)
        # Conformal: with n waits seen, the next is equally likely to fall into each of n + 1 gaps.
        place = math.ceil((count + 1) * share - 1e-9)
        if place <= count:
            return self.ordered[max(place, 1) - 1]
        beyond = (share - count / (count + 1)) / (GAIN * QUANTILE)
        return self.ordered[-1] * math.pow(WIDER, beyond)

    def credit(self, wait: float, bound: float, share: float) -> float:
        """
        Return how far a bound held: 1, 0, or a share in between where the wait equalled it.

        Where many waits are the same, such as none at all, no bound divides them at the share:
        one that is met exactly counts for the part of these waits that lies below the share.
        """
        if wait != bound:
            return float(wait < bound)
        count = len(self.ordered)
        below, up_to = bisect_left(self.ordered, bound), bisect_right(self.ordered, bound)
        if below == up_to:
            return 1.0
        return min(max((share * count - below) / (up_to - below), 0.0), 1.0)


@dataclass(slots=True)
class _BoundControl:
    """Score of the bounds for requests of similar size, and the quantile adapted to this score."""

    share: float = QUANTILE
    """Share of the waits that the next bound is to cover, above 1 while too few bounds hold."""
    score: BoundScore = field(default_factory=BoundScore)

    def check(self, held: bool, credit: float) -> None:
        """Record whether a bound has held, and move the share by the bound's credit."""
        self.score.given += 1
        self.score.held += held
        # Gibbs and Candes's update: whatever the waits do, the mean credit tends to QUANTILE.
        self.share = max(0.0, self.share + GAIN * (QUANTILE - credit))

    def restore(self, credit: float) -> None:
        """Correct a bound that was taken to have failed, and held."""
        self.score.held += 1
        self.share = max(0.0, self.share - GAIN * credit)


_Key = tuple[str, int, int]
"""Site, size and length of requests that are alike; :data:`_ANY` for all sizes or lengths."""

_ANY = -1


@dataclass(slots=True)
class _ObservedWait:
    keys: tuple[_Key, ...]
    at: float
    bound: float | None
    """None: there was too little history for one."""
    kind: _WaitClass | None
    share: float
    is_checked: bool = False


class WaitPredictor:
    """
    Predicts upper bounds on the waits of a user's requests, by site, size and length.

    Sizes and lengths are told apart by powers of four. While there is too little of a kind, waits
    of all lengths count, then those of all sizes. How many bounds hold is watched for each size
    by itself, so that small requests that hold more often do not make up for large ones.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Key, _WaitClass] = {}
        self._controls: dict[tuple[str, int], _BoundControl] = {}
        self._open: dict[str, _ObservedWait] = {}
        self._due: list[tuple[float, str]] = []
        """When bounds of open requests fail; requests that have begun may still be listed."""
        self._starts: dict[str, deque[float]] = {}

    def bound(self, site: str, processors: int, seconds: float) -> float | None:
        """
        Return a bound within which nine of ten similar requests begin, seconds.

        None with too little history.
        """
        keys = _keys(site, processors, seconds)
        kind = self._kind(keys)
        return None if kind is None else kind.covering(self._control(keys).share)

    def asked(self, name: str, site: str, processors: int, seconds: float, now: float) -> None:
        """Record a new waiting request, and its present bound to be checked later."""
        self._fail_until(now)
        keys = _keys(site, processors, seconds)
        kind, share = self._kind(keys), self._control(keys).share
        bound = None if kind is None else kind.covering(share)
        self._open[name] = _ObservedWait(keys, now, bound, kind, share)
        if bound is not None:
            heapq.heappush(self._due, (now + bound, name))

    def began(self, name: str, now: float) -> None:
        """Record that a request got its processors; ignore unknown requests."""
        self._fail_until(now)
        asked = self._open.pop(name, None)
        if asked is None:
            return
        wait = max(0.0, now - asked.at)
        self._check(asked, wait)
        for key in asked.keys:
            self._kinds.setdefault(key, _WaitClass()).add(wait)

    def started(self, site: str, delay: float) -> None:
        """Record the start delay, seconds, of a request that fitted the free processors."""
        self._starts.setdefault(site, deque(maxlen=STARTS)).append(max(0.0, delay))

    def starts_slowly(self, site: str) -> bool:
        """
        Whether a site is slow to start requests for which processors are free.

        Half of the last requests that fitted took longer than :data:`SLOW`. A site of which
        nothing is known is taken to be slow.
        """
        seen = self._starts.get(site)
        return not seen or statistics.median(seen) > SLOW

    def ended(self, name: str, now: float) -> None:
        """
        Record that a request has ended without ever getting processors.

        A bound that the request has outlasted has failed; about others nothing can be said.
        """
        self._fail_until(now)
        self._open.pop(name, None)

    def score(self, site: str | None = None) -> BoundScore:
        """Return what became of all bounds, or of one site's."""
        total = BoundScore()
        for (name, _), control in self._controls.items():
            if site is None or name == site:
                total.given += control.score.given
                total.held += control.score.held
        return total

    def kept(self) -> dict[str, Any]:
        """Return the history as data that can be written as JSON, for the next run."""
        return {
            "version": VERSION,
            "kinds": [
                {"site": site, "size": size, "length": length, "waits": list(kind.waits)}
                for (site, size, length), kind in self._kinds.items()
            ],
            "controls": [
                {
                    "site": site,
                    "size": size,
                    "share": control.share,
                    "given": control.score.given,
                    "held": control.score.held,
                }
                for (site, size), control in self._controls.items()
            ],
            "starts": {site: list(seen) for site, seen in self._starts.items()},
        }

    @classmethod
    def of_kept(cls, data: Mapping[str, Any]) -> "WaitPredictor":
        """
        Read a history that was kept.

        Raises
        ------
        InputError
            When the data are not of this form, or of another version.
        """
        waits = cls()
        try:
            if data["version"] != VERSION:
                raise InputError(f"a history of version {data['version']!r}, not {VERSION}")
            for entry in data["kinds"]:
                seen = _seconds(entry["waits"])[-MEMORY:]
                key = (str(entry["site"]), int(entry["size"]), int(entry["length"]))
                waits._kinds[key] = _WaitClass(deque(seen), sorted(seen))
            for entry in data["controls"]:
                (share,) = _seconds([entry["share"]])
                score = BoundScore(int(entry["given"]), int(entry["held"]))
                place = (str(entry["site"]), int(entry["size"]))
                waits._controls[place] = _BoundControl(share, score)
            for site, delays in data["starts"].items():
                waits._starts[str(site)] = deque(_seconds(delays), maxlen=STARTS)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a history of waits: {error!r}") from error
        return waits

    def _kind(self, keys: tuple[_Key, ...]) -> _WaitClass | None:
        """Return the narrowest kind with enough waits."""
        for key in keys:
            kind = self._kinds.get(key)
            if kind is not None and len(kind.waits) >= FEWEST:
                return kind
        return None

    def _control(self, keys: tuple[_Key, ...]) -> _BoundControl:
        site, size, _ = keys[0]
        return self._controls.setdefault((site, size), _BoundControl())

    def _check(self, asked: _ObservedWait, wait: float) -> None:
        """Score the bound of a request that has waited so long."""
        if asked.bound is None or asked.kind is None:
            return
        control = self._control(asked.keys)
        credit = asked.kind.credit(wait, asked.bound, asked.share)
        if not asked.is_checked:
            control.check(wait <= asked.bound, credit)
        elif wait <= asked.bound:
            control.restore(credit)  # the start was told late, after the bound had passed
        asked.is_checked = True

    def _fail_until(self, now: float) -> None:
        """Count bounds that requests have outlasted, as soon as that is known."""
        # A failure counts when the bound has passed, not when the request begins: long waits would
        # otherwise teach last.
        while self._due and self._due[0][0] < now:
            _, name = heapq.heappop(self._due)
            asked = self._open.get(name)
            if asked is not None and asked.bound is not None and now - asked.at > asked.bound:
                self._check(asked, now - asked.at)


def _keys(site: str, processors: int, seconds: float) -> tuple[_Key, ...]:
    """Return the kind of a request and wider kinds, the narrowest first."""
    size = int(math.log2(max(processors, 1))) // 2
    length = int(math.log2(max(min(seconds, 1e9), 1.0))) // 2
    return (site, size, length), (site, size, _ANY), (site, _ANY, length), (site, _ANY, _ANY)


def _seconds(values: Iterable[Any]) -> list[float]:
    """Convert values to finite numbers that are not negative."""
    made = [float(value) for value in values]
    if not all(0 <= value < math.inf for value in made):
        raise InputError("a wait that is negative or has no end")
    return made
