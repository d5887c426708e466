"""
Forecasts how long requests wait, as distributions that score themselves.

Nobody's estimate of a start is to be trusted, the scheduler's included. What can be said is said
by conformal prediction: if the next wait is as likely as those before to be the longest, or any
other in their order, it is no longer than the k-th smallest of n waits in k of n + 1 cases. Waits
in a queue are not like that, since the load changes. So the share k / (n + 1) is not fixed: it
rises with each bound that fails and falls a little with each that holds, by which nine of ten
bounds of nine tenths hold in the long run whatever the waits do (Gibbs and Candes 2021), and
likewise for each other share.

Where the queue can be seen, waits are not compared with each other but each with its own
projection: what is remembered is where each wait lay in the distribution that was projected for
it, and the forecast is the new projection, read where so many of the earlier waits lay
(Chernozhukov, Wuethrich and Zhu 2021). A projection that is wrong in the same way each time is thus
corrected, and one that says nothing costs sharpness, but not coverage.

The binomial bounds of Brevik, Nurmi and Wolski (2006) are no less than the quantile *with a
certainty of 95 %*. That is another promise, and a more cautious one.

References
----------
.. [1] Gibbs, Candes (2021). Adaptive conformal inference under distribution shift. NeurIPS 34,
   section 2.
.. [2] Chernozhukov, Wuethrich, Zhu (2021). Distributional conformal prediction. PNAS 118(48),
   e2107794118.
.. [3] Brevik, Nurmi, Wolski (2006). Predicting bounds on queuing delay for batch-scheduled
   parallel machines. PPoPP '06, section 3.
"""

import heapq
import math
import statistics
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bursar.model.errors import InputError
from bursar.provisioning.wait_forecast import (
    NO_WAIT,
    SECONDS,
    SHARES,
    Pace,
    ProjectedWaits,
    WaitForecast,
    WaitScale,
    covering,
)

QUANTILE = 0.9
"""Share of the waits that a bound should hold for where no other share is named."""

FEWEST = 9
"""Waits from which on there is a bound: in 9 of 10 cases the next is no longer than all nine."""

SLOW = 10.0
"""Seconds from a request to its start, above which a site that has room is slow."""

STARTS = 20
"""Last starts by which slowness is judged."""

VERSION = 3
"""Version of the form in which histories are kept."""


_BY_HISTORY = Pace(memory=200, gain=0.03, wider=1.25)
_BY_PROJECTION = Pace(memory=1000, gain=0.001, wider=1.02)
"""A projection follows the load by itself; what is corrected are errors that last."""


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
    """Places of similar requests' waits, kept both in order of ending and sorted."""

    pace: Pace
    places: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, place: float) -> None:
        self.places.append(place)
        insort(self.ordered, place)
        if len(self.places) > self.pace.memory:
            del self.ordered[bisect_left(self.ordered, self.places.popleft())]

    def bounds(self, shares: Sequence[float]) -> list[float]:
        """Return the place to be read for each of :data:`SHARES`, from the adapted shares."""
        return [
            covering(self.ordered, share, nominal, self.pace)
            for share, nominal in zip(shares, SHARES, strict=True)
        ]

    def credit(self, place: float, bound: float, share: float) -> float:
        """
        Return how far a bound held: 1, 0, or a share in between where the wait equalled it.

        Where many waits are the same, such as none at all, no bound divides them at the share:
        one that is met exactly counts for the part of these waits that lies below the share.
        """
        if place != bound:
            return float(place < bound)
        count = len(self.ordered)
        below, up_to = bisect_left(self.ordered, bound), bisect_right(self.ordered, bound)
        if below == up_to:
            return 1.0
        return min(max((share * count - below) / (up_to - below), 0.0), 1.0)


@dataclass(slots=True)
class _BoundControl:
    """Scores of the bounds for requests of similar size, and the shares adapted to these."""

    raw: list[float] = field(default_factory=lambda: list(SHARES))
    """Share of the waits that the next bound is to cover, above 1 while too few bounds hold."""
    scores: list[BoundScore] = field(default_factory=lambda: [BoundScore() for _ in SHARES])

    @property
    def shares(self) -> list[float]:
        """Adapted shares, made not to fall: a bound of more is no less than one of less."""
        found, least = [], 0.0
        for share in self.raw:
            least = max(least, share)
            found.append(least)
        return found

    def check(self, index: int, gain: float, *, held: bool, credit: float) -> None:
        """Record whether a bound has held, and move its share by the bound's credit."""
        self.scores[index].given += 1
        self.scores[index].held += held
        # Gibbs and Candes's update: whatever the waits do, the mean credit tends to the share.
        self.raw[index] = max(0.0, self.raw[index] + gain * (SHARES[index] - credit))

    def restore(self, index: int, gain: float, credit: float) -> None:
        """Correct a bound that was taken to have failed, and held."""
        self.scores[index].held += 1
        self.raw[index] = max(0.0, self.raw[index] - gain * credit)


_Key = tuple[str, int, int]
"""Site, size and length of requests that are alike; :data:`_ANY` for all sizes or lengths."""

_ANY = -1
_PROJECTED = -2
"""In place of a size: requests whose wait was projected."""
_AT_ONCE = -3
"""In place of a size: requests that were projected to start at once."""

_BOUND = SHARES.index(QUANTILE)


@dataclass(slots=True)
class _ObservedWait:
    keys: tuple[_Key, ...]
    at: float
    scale: WaitScale
    kind: _WaitClass | None
    """None: there was too little history for bounds."""
    shares: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Bounds, seconds, one for each of :data:`SHARES`."""
    checked: set[int] = field(default_factory=set)


class WaitPredictor:
    """
    Predicts the waits of requests: by projections of the queue, else by site, size and length.

    Sizes and lengths are told apart by powers of four. While there is too little of a kind, waits
    of all lengths count, then those of all sizes. How many bounds hold is watched for each size
    by itself, so that small requests that hold more often do not make up for large ones.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Key, _WaitClass] = {}
        self._controls: dict[tuple[str, int], _BoundControl] = {}
        self._open: dict[str, _ObservedWait] = {}
        self._due: list[tuple[float, str, int]] = []
        """When bounds of open requests fail; requests that have begun may still be listed."""
        self._starts: dict[str, deque[float]] = {}

    def bound(self, site: str, processors: int, seconds: float) -> float | None:
        """
        Return a bound within which nine of ten similar requests begin, seconds.

        None with too little history.
        """
        forecast = self.forecast(site, processors, seconds)
        return None if forecast is None else forecast.wait_quantiles((QUANTILE,))[0]

    def forecast(
        self,
        site: str,
        processors: int,
        seconds: float,
        projection: ProjectedWaits | None = None,
    ) -> WaitForecast | None:
        """
        Return how long a request would wait that is made now.

        Parameters
        ----------
        projection
            Its waits as projected from the live queue; None: by the history of waits alone.

        Returns
        -------
        WaitForecast or None
            None without a projection and with too little history.
        """
        keys = _keys(site, processors, seconds, projection)
        kind, shares = self._kind(keys), self._control(keys).shares
        places = () if kind is None else kind.ordered
        if projection is not None:
            scale = _scale_of(projection)
            if kind is None and projection.starts_at_once:
                scale = NO_WAIT
            return WaitForecast("queue", scale, places, shares, _pace_of(keys[0]))
        if kind is None:
            return None
        return WaitForecast("history", SECONDS, places, shares, kind.pace)

    def asked(
        self,
        name: str,
        site: str,
        processors: int,
        seconds: float,
        now: float,
        projection: ProjectedWaits | None = None,
    ) -> None:
        """Record a new waiting request, and its present bounds to be checked later."""
        self._fail_until(now)
        keys = _keys(site, processors, seconds, projection)
        kind = self._kind(keys)
        asked = _ObservedWait(keys, now, _scale_of(projection), kind)
        self._open[name] = asked
        if kind is None:
            return
        asked.shares = self._control(keys).shares
        asked.places = kind.bounds(asked.shares)
        asked.waits = [asked.scale.wait_at(place) for place in asked.places]
        for index, wait in enumerate(asked.waits):
            heapq.heappush(self._due, (now + wait, name, index))

    def began(self, name: str, now: float) -> None:
        """Record that a request got its processors; ignore unknown requests."""
        self._fail_until(now)
        asked = self._open.pop(name, None)
        if asked is None:
            return
        wait = max(0.0, now - asked.at)
        for index in range(len(asked.waits)):
            self._check(asked, index, wait)
        place = asked.scale.place_of(wait)
        for key in asked.keys:
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _WaitClass(_pace_of(key))
            kind.add(place)

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

    def score(self, site: str | None = None, share: float = QUANTILE) -> BoundScore:
        """Return what became of all bounds of one of :data:`SHARES`, or of one site's."""
        total, index = BoundScore(), SHARES.index(share)
        for (name, _), control in self._controls.items():
            if site is None or name == site:
                total.given += control.scores[index].given
                total.held += control.scores[index].held
        return total

    def kept(self) -> dict[str, Any]:
        """Return the history as data that can be written as JSON, for the next run."""
        return {
            "version": VERSION,
            "kinds": [
                {"site": site, "size": size, "length": length, "waits": list(kind.places)}
                for (site, size, length), kind in self._kinds.items()
            ],
            "controls": [
                {
                    "site": site,
                    "size": size,
                    "shares": list(control.raw),
                    "given": [score.given for score in control.scores],
                    "held": [score.held for score in control.scores],
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
                key = (str(entry["site"]), int(entry["size"]), int(entry["length"]))
                pace = _pace_of(key)
                seen = _finite(entry["waits"])[-pace.memory :]
                waits._kinds[key] = _WaitClass(pace, deque(seen), sorted(seen))
            for entry in data["controls"]:
                shares = _finite(entry["shares"])
                counts = zip(SHARES, entry["given"], entry["held"], strict=True)
                scores = [BoundScore(int(given), int(held)) for _, given, held in counts]
                if len(shares) != len(SHARES):
                    raise InputError(f"{len(shares)} shares instead of {len(SHARES)}")
                waits._controls[str(entry["site"]), int(entry["size"])] = _BoundControl(
                    shares, scores
                )
            for site, delays in data["starts"].items():
                waits._starts[str(site)] = deque(_finite(delays), maxlen=STARTS)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a history of waits: {error!r}") from error
        return waits

    def _kind(self, keys: tuple[_Key, ...]) -> _WaitClass | None:
        """Return the narrowest kind with enough waits."""
        for key in keys:
            kind = self._kinds.get(key)
            if kind is not None and len(kind.places) >= FEWEST:
                return kind
        return None

    def _control(self, keys: tuple[_Key, ...]) -> _BoundControl:
        site, size, _ = keys[0]
        return self._controls.setdefault((site, size), _BoundControl())

    def _check(self, asked: _ObservedWait, index: int, wait: float) -> None:
        """Score a bound of a request that has waited so long."""
        if asked.kind is None:
            return
        control, held = self._control(asked.keys), wait <= asked.waits[index]
        place, gain = asked.scale.place_of(wait), asked.kind.pace.gain
        credit = asked.kind.credit(place, asked.places[index], asked.shares[index])
        if index not in asked.checked:
            control.check(index, gain, held=held, credit=credit)
        elif held:  # the start was told late, after the bound had passed
            control.restore(index, gain, credit)
        asked.checked.add(index)

    def _fail_until(self, now: float) -> None:
        """Count bounds that requests have outlasted, as soon as that is known."""
        # A failure counts when the bound has passed, not when the request begins: long waits would
        # otherwise teach last.
        while self._due and self._due[0][0] < now:
            _, name, index = heapq.heappop(self._due)
            asked = self._open.get(name)
            if asked is not None and asked.waits and now - asked.at > asked.waits[index]:
                self._check(asked, index, now - asked.at)


def _keys(
    site: str, processors: int, seconds: float, projection: ProjectedWaits | None
) -> tuple[_Key, ...]:
    """Return the kind of a request and wider kinds, the narrowest first."""
    if projection is not None:
        size = _AT_ONCE if projection.starts_at_once else _PROJECTED
        return ((site, size, _ANY),)
    size = int(math.log2(max(processors, 1))) // 2
    length = int(math.log2(max(min(seconds, 1e9), 1.0))) // 2
    return (site, size, length), (site, size, _ANY), (site, _ANY, length), (site, _ANY, _ANY)


def _pace_of(key: _Key) -> Pace:
    return _BY_PROJECTION if key[1] == _PROJECTED else _BY_HISTORY


def _scale_of(projection: ProjectedWaits | None) -> WaitScale:
    # Where no projection differs from another, no place does: these waits are compared themselves.
    return SECONDS if projection is None or projection.starts_at_once else projection


def _finite(values: Iterable[Any]) -> list[float]:
    """Convert values to finite numbers that are not negative."""
    made = [float(value) for value in values]
    if not all(0 <= value < math.inf for value in made):
        raise InputError("a wait that is negative or has no end")
    return made
