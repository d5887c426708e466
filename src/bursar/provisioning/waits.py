"""
How long requests wait, at most: bounds from their own history, which score themselves.

Nobody's estimate of a start is to be trusted, the scheduler's included. What can be said is what
Brevik, Nurmi and Wolski say: of waits that are alike, the k-th smallest is no less than a quantile
with a certainty that follows from the binomial distribution, whatever their distribution is. That
holds while the load stays as it is; when several bounds in a row fail, it has changed, and what
was before is forgotten.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bursar.model.errors import InputError

QUANTILE = 0.9
"""Share of the waits that a bound should hold for."""

CONFIDENCE = 0.9
"""That it does."""

MEMORY = 200
"""Waits that are remembered of each kind."""

CHANGED = 3
"""Bounds that fail in a row by which the load has changed."""

WIDER = 1.25
"""Times which bounds become longer at each failure while fewer hold than should."""

VERSION = 1
"""Of the form in which histories are kept."""

_RELAX = 0.97


@lru_cache(maxsize=MEMORY + 1)
def rank(count: int, quantile: float = QUANTILE, confidence: float = CONFIDENCE) -> int | None:
    """
    Which of so many values, from the smallest on, is no less than a quantile.

    The smallest k for which P(fewer than k of the values lie below the quantile), binomial with
    the quantile as its probability, is at least the confidence.

    Parameters
    ----------
    count
        Of the values, independent and alike.

    Returns
    -------
    int or None
        From 1 on; None with too few values: 22 are needed for the ninth decile with 90 %.

    References
    ----------
    .. [1] Brevik, Nurmi, Wolski (2006). Predicting bounds on queuing delay for batch-scheduled
       parallel machines. PPoPP '06, section 3.
    """
    # From above: P(k or more below) falls as k rises, and k = count + 1 would be certain.
    above, term = 0.0, quantile**count
    best = None
    for k in range(count, 0, -1):
        above += term  # P(at least k below)
        if above > 1.0 - confidence:
            break
        best = k
        term *= k / (count - k + 1) * (1.0 - quantile) / quantile
    return best


@dataclass(slots=True)
class Score:
    """
    What became of bounds.

    Parameters
    ----------
    given, held
        Those whose request has begun or waited longer, and those of them that held.
    """

    given: int = 0
    held: int = 0

    def __str__(self) -> str:
        share = f"{QUANTILE * 100:.0f} %"
        return f"{share} bounds given {self.given} times, held {self.held}"


@dataclass(slots=True)
class _Kind:
    """Waits of requests that are alike, in the order in which they ended, and sorted."""

    waits: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)
    misses: int = 0  # in a row
    wider: float = 1.0
    score: Score = field(default_factory=Score)

    def add(self, wait: float) -> None:
        self.waits.append(wait)
        insort(self.ordered, wait)
        if len(self.waits) > MEMORY:
            self.ordered.remove(self.waits.popleft())

    def bound(self) -> float | None:
        place = rank(len(self.ordered))
        return None if place is None else self.ordered[place - 1] * self.wider

    def check(self, held: bool) -> None:
        """A bound has held, or not."""
        self.score.given += 1
        self.score.held += held
        if held:
            self.misses = 0
            self.wider = max(1.0, self.wider * _RELAX)
            return
        self.misses += 1
        if self.score.held < QUANTILE * self.score.given:
            self.wider *= WIDER
        if self.misses >= CHANGED:
            self._forget()

    def _forget(self) -> None:
        """Only the last waits are kept, as few as give a bound at all."""
        least = next(n for n in range(1, MEMORY) if rank(n) is not None)
        while len(self.waits) > least:
            self.waits.popleft()
        self.ordered = sorted(self.waits)
        self.misses = 0


_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Asked:
    keys: tuple[_Key, ...]
    at: float
    bound: float | None
    of: _Key | None  # whose bound it is


class Waits:
    """
    The waits of one user's requests, by site, size and length.

    Sizes and lengths are told apart by powers of four. While there is too little of a kind, all
    of the site's count.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Key, _Kind] = {}
        self._open: dict[str, _Asked] = {}

    def bound(self, site: str, processors: int, seconds: float) -> float | None:
        """Seconds that a request waits at most, for nine of ten; None with too little history."""
        return self._bound(_keys(site, processors, seconds))[0]

    def asked(self, name: str, site: str, processors: int, seconds: float, now: float) -> None:
        """A request waits, from now on; the bound that holds for it now will be checked."""
        keys = _keys(site, processors, seconds)
        bound, of = self._bound(keys)
        self._open[name] = _Asked(keys, now, bound, of)

    def began(self, name: str, now: float) -> None:
        """It has its processors. Of one that is not known nothing is learned."""
        asked = self._open.pop(name, None)
        if asked is None:
            return
        wait = max(0.0, now - asked.at)
        if asked.of is not None and asked.bound is not None:
            self._kinds[asked.of].check(wait <= asked.bound)
        for key in asked.keys:
            self._kinds.setdefault(key, _Kind()).add(wait)

    def gone(self, name: str, now: float) -> None:
        """It will not have them: a bound that it has outlasted has failed, others say nothing."""
        asked = self._open.pop(name, None)
        if asked is None or asked.of is None or asked.bound is None:
            return
        if now - asked.at > asked.bound:
            self._kinds[asked.of].check(False)

    def score(self, site: str | None = None) -> Score:
        """Of all bounds, or of one site's."""
        total = Score()
        for (name, _, _), kind in self._kinds.items():
            if site is None or name == site:
                total.given += kind.score.given
                total.held += kind.score.held
        return total

    def kept(self) -> dict[str, Any]:
        """As data that can be written as JSON, to be kept until the next run."""
        return {
            "version": VERSION,
            "kinds": [
                {
                    "site": site,
                    "size": size,
                    "length": length,
                    "waits": list(kind.waits),
                    "misses": kind.misses,
                    "wider": kind.wider,
                    "given": kind.score.given,
                    "held": kind.score.held,
                }
                for (site, size, length), kind in self._kinds.items()
            ],
        }

    @classmethod
    def of_kept(cls, data: Mapping[str, Any]) -> "Waits":
        """
        A history that was kept.

        Raises
        ------
        InputError
            When it is not of this form; of another version it is.
        """
        waits = cls()
        try:
            if data["version"] != VERSION:
                raise InputError(f"a history of version {data['version']!r}, not {VERSION}")
            for entry in data["kinds"]:
                seen = [float(wait) for wait in entry["waits"]][-MEMORY:]
                if not all(0 <= wait < math.inf for wait in seen):
                    raise InputError("a wait that is negative or has no end")
                kind = _Kind(deque(seen), sorted(seen), int(entry["misses"]))
                kind.wider = max(1.0, float(entry["wider"]))
                kind.score = Score(int(entry["given"]), int(entry["held"]))
                key = (str(entry["site"]), int(entry["size"]), int(entry["length"]))
                waits._kinds[key] = kind
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a history of waits: {error!r}") from error
        return waits

    def _bound(self, keys: tuple[_Key, ...]) -> tuple[float | None, _Key | None]:
        for key in keys:
            kind = self._kinds.get(key)
            bound = kind.bound() if kind is not None else None
            if bound is not None:
                return bound, key
        return None, None


_ANY = -1


def _keys(site: str, processors: int, seconds: float) -> tuple[_Key, ...]:
    """The kind of a request, and wider ones; the narrowest first."""
    size = int(math.log2(max(processors, 1))) // 2
    length = int(math.log2(max(min(seconds, 1e9), 1.0))) // 2
    return (site, size, length), (site, _ANY, length), (site, _ANY, _ANY)
