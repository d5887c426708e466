"""Estimate how long jobs take, by what was given and observed since; find the sites that work."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

from bursar.model.provisioning import WorkerStarts
from bursar.model.site import SiteFacts

# Estimate how long jobs take, from what was given and what has been observed since.

TRUST = 1.0
"""Weight of the expectation for a site, in jobs observed there."""

CONFIDENCE = 0.95
"""Probability that a margin suffices."""

GUESS = 60.0
"""Assumed seconds of a job where neither a runtime nor a limit of the goal is given."""


START_UP = {
    "local": 0.5,
    "batch": 5.0,
    "remote": 2.0,
    "dask": 2.0,
    "ssh": 5.0,
    "cloud": 5.0,
}
"""Seconds from when a site's processors are held until their workers take tasks, generously."""

FEW_STARTS = 3.0
"""Number of observed starts for which the stated time counts."""

FEW_DEGREES = 200
"""Degrees of freedom up to which Student's distribution is summed term by term."""


def start_up(site: SiteFacts) -> float:
    """Return the seconds of margin for the start of a site's workers; 0 for simulated sites."""
    return worker_starts(site).latest


def worker_starts(site: SiteFacts) -> WorkerStarts:
    """Return how long a site's workers take to start, as runs have seen it, else generously."""
    late = 0.0 if site.cloud is None else site.cloud.late
    stated = WorkerStarts(0.0, START_UP.get(site.kind, 0.0) + late)
    if site.batch is None or site.batch.learned is None:
        return stated
    seen = WorkerStarts.of_seen(site.batch.learned)
    part = site.batch.learned.count / (site.batch.learned.count + FEW_STARTS)
    # Few starts show no late ones: what is stated holds for those.
    latest = max(seen.latest, stated.latest)
    return WorkerStarts(part * seen.soonest, part * seen.latest + (1 - part) * latest)


def price_at_speed(site: SiteFacts) -> float:
    """Return the price of a processor-second of work at speed 1; infinite where it is unknown."""
    return math.inf if site.unit_price is None else site.unit_price / site.speed


@lru_cache(maxsize=1024)
def student_quantile(degrees: int, probability: float) -> float:
    """
    Return the value that a variable of Student's t distribution does not exceed so probably.

    Exact to ten digits; a library for this alone would take longer to load than the broker.

    Parameters
    ----------
    degrees
        Degrees of freedom, at least 1.
    probability
        From 0.5 on, below 1.

    References
    ----------
    .. [1] Abramowitz, Stegun (1964). Handbook of mathematical functions, 26.7.3 to 26.7.5.
    """
    if not (degrees >= 1 and 0.5 <= probability < 1):
        raise ValueError(f"no quantile for {degrees} degrees of freedom at {probability}")
    if degrees > FEW_DEGREES:
        return _quantile_of_many(degrees, NormalDist().inv_cdf(probability))
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    while low < (middle := (low + high) / 2) < high:
        if _within(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(middle)


def _within(angle: float, degrees: int) -> float:
    """Return the probability that a variable lies within plus and minus ``t`` (26.7.3, 26.7.4)."""
    cosine, odd = math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for n in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (n - 1) / n
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _quantile_of_many(degrees: int, x: float) -> float:
    """Return the quantile by its expansion around that of the normal distribution (26.7.5)."""
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92_160,
    )
    return x + math.fsum(term / float(degrees) ** n for n, term in enumerate(terms, 1))


@dataclass(slots=True)
class _ObservedRuntimes:
    """Observed runtimes at one site, in seconds for size 1."""

    expected: float
    count: int = 0
    ran: float = 0.0
    took: float = 0.0
    mean: float = 0.0  # of what they took
    squares: float = 0.0  # sum of squared deviations from that mean
    attempts: int = 0
    failures: int = 0


@dataclass(slots=True)
class RuntimeEstimates:
    """
    Estimates the seconds that a job of size 1 takes at each site, and their spread.

    A site's own jobs count most; until there are some, jobs at other sites show how far the
    estimates are off.

    Parameters
    ----------
    speeds
        Work per second of each site, by name.
    known
        Whether sizes are estimated seconds at speed 1; otherwise all jobs count 1, and
        nothing is known of how long that is.
    """

    speeds: dict[str, float]
    known: bool
    _seen: dict[str, _ObservedRuntimes] = field(init=False)
    _count: int = 0
    _ran: float = 0.0  # over what was expected, summed
    _took: float = 0.0

    def __post_init__(self) -> None:
        self._seen = {name: _ObservedRuntimes(1.0 / speed) for name, speed in self.speeds.items()}

    def learn(self, site: str, size: float, ran: float, took: float) -> None:
        """
        Take in a job that has succeeded.

        Parameters
        ----------
        size
            Size of the job. Positive.
        ran, took
            Seconds that it ran, and from when it was sent until its end was known.
        """
        seen = self._seen[site]
        seen.attempts += 1
        seen.count += 1
        seen.ran += ran / size
        each = max(took / size, _LEAST)  # what takes no time has no relative spread
        seen.took += each
        # Welford's updating: jobs that all take the same have no spread, not that of rounding.
        off = each - seen.mean
        seen.mean += off / seen.count
        seen.squares += off * (each - seen.mean)
        self._count += 1
        self._ran += ran / size / seen.expected
        self._took += each / seen.expected

    def failed(self, site: str) -> None:
        """Count a failed attempt."""
        self._seen[site].attempts += 1
        self._seen[site].failures += 1

    def count(self, site: str) -> int:
        """Return how many jobs have succeeded at a site."""
        return self._seen[site].count

    def mean(self, site: str) -> float | None:
        """
        Return the mean seconds from sending a job to learning of the job's end, as observed.

        None before a job has ended there.
        """
        seen = self._seen[site]
        return seen.took / seen.count if seen.count else None

    def mean_run(self, site: str) -> float | None:
        """
        Return the mean run time of the site's jobs, seconds; None before a job has ended there.
        """
        seen = self._seen[site]
        return seen.ran / seen.count if seen.count else None

    @property
    def is_known(self) -> bool:
        """Whether job lengths can be estimated, from stated or observed times."""
        return self.known or self._count > 0

    def runs(self, site: str) -> float:
        """
        Return the expected seconds from start to end of a job of size 1 at a site.

        Raises
        ------
        ValueError
            When nothing is known.
        """
        seen = self._seen[site]
        return self._blend(seen, seen.ran, self._ran)

    def takes(self, site: str) -> float:
        """
        Return the expected seconds from sending a job of size 1 to learning of the job's end.

        Raises
        ------
        ValueError
            When nothing is known.
        """
        seen = self._seen[site]
        # A job cannot be known to have ended before it has run, whatever the two means say.
        return max(self._blend(seen, seen.took, self._took), self.runs(site), _LEAST)

    @property
    def failures(self) -> float:
        """Share of the attempts that failed."""
        attempts = sum(seen.attempts for seen in self._seen.values())
        return sum(seen.failures for seen in self._seen.values()) / attempts if attempts else 0.0

    def is_broken(self, site: str) -> bool:
        """Whether many attempts failed there, none succeeded, and there is a better place."""
        seen = self._seen[site]
        if seen.count or seen.failures < _BROKEN:
            return False
        # If every site fails alike, the jobs are to blame: none is left out.
        return any(other.count or other.failures < _BROKEN for other in self._seen.values())

    @property
    def spread(self) -> float:
        """
        Pooled standard deviation of the jobs' times, relative to the mean of each site.

        0 while no site has had two jobs.
        """
        squares, degrees = self._deviations()
        return math.sqrt(squares / degrees) if degrees else 0.0

    @property
    def between(self) -> float:
        """Relative spread of sites' means over the expected ones; 0 with less than two sites."""
        ratios = [s.took / s.count / s.expected for s in self._seen.values() if s.count]
        if len(ratios) < 2:
            return 0.0
        mean = sum(ratios) / len(ratios)
        return math.sqrt(sum((r - mean) ** 2 for r in ratios) / (len(ratios) - 1)) / mean

    @property
    def quantile(self) -> float:
        """Standard deviations that cover :data:`CONFIDENCE` by Student's t; 0 without data."""
        degrees = self._deviations()[1]
        if not degrees:
            return 0.0
        return student_quantile(degrees, CONFIDENCE)

    def _blend(self, seen: _ObservedRuntimes, total: float, over: float) -> float:
        """
        Blend a site's observed mean with the expected time, scaled by the error seen at all sites.
        """
        if not self.is_known:
            raise ValueError("nothing is known of how long jobs take")
        # One site's jobs tell of all: if they took twice as long as stated, others will, too.
        stretch = over / self._count if self._count else 1.0
        return (TRUST * stretch * seen.expected + total) / (TRUST + seen.count)

    def _deviations(self) -> tuple[float, int]:
        """Return the pooled sum of squared relative deviations, and the degrees of freedom."""
        squares, degrees = 0.0, 0
        for seen in self._seen.values():
            if seen.count > 1:
                # Pooled within sites: sites differ in speed, which must not pass for spread of
                # jobs.
                squares += seen.squares / seen.mean**2
                degrees += seen.count - 1
        return squares, degrees


def sizes_of(runtimes: Iterable[float | None]) -> tuple[list[float], bool]:
    """
    Return the sizes of jobs, and whether sizes are seconds.

    Where only some have an estimate, the others count as their mean; where none has, all count 1.
    """
    estimates = list(runtimes)
    given = [e for e in estimates if e is not None]
    mean = sum(given) / len(given) if given else 1.0
    return [max(mean if e is None else e, _LEAST) for e in estimates], bool(given)


def even_share(
    *, jobs: int, processors: int, time_left: float, money_left: float, price: float
) -> float:
    """
    Return seconds that a job of unknown length has when all jobs share the goal evenly.

    The money left is shared by the jobs, the time left by the rounds in which the processors
    of all sites do them. A share of the goal, unlike a number of seconds, makes a campaign
    of one-second jobs go like one of one-hour jobs.

    Parameters
    ----------
    jobs, processors
        Number of jobs left, and of processors of all sites.
    time_left, money_left
        Seconds and currency units; infinite for no limit.
    price
        Currency units per processor-second at the site of the job.
    """
    paid = money_left / jobs / price if price > 0 else math.inf
    share = min(paid, time_left / math.ceil(jobs / processors))
    return GUESS if math.isinf(share) else max(_SHORTEST, share)


_LEAST = 1e-6
_SHORTEST = 1e-3  # seconds
_BROKEN = 3


# The grid explorer finds the sites that a campaign can use (Nimrod/G section 2).

PATIENCE = 3
"""Failures to give a processor after which a site is no longer asked."""


class GridExplorer:
    """Finds the sites that can be used, and leaves out those that fail."""

    def __init__(self, sites: Sequence[SiteFacts], estimates: RuntimeEstimates) -> None:
        self._sites = {site.name: site for site in sites}
        self._estimates = estimates
        self._faults: dict[str, int] = {}

    @property
    def sites(self) -> list[SiteFacts]:
        """Sites that can be used now."""
        return [site for name, site in self._sites.items() if self.is_usable(name)]

    def site(self, name: str) -> SiteFacts | None:
        """Return the site of a name, usable or not."""
        return self._sites.get(name)

    def is_usable(self, name: str) -> bool:
        """Whether a site gives processors and is not the only one at which all jobs fail."""
        return self._faults.get(name, 0) < PATIENCE and not self._estimates.is_broken(name)

    def failed(self, name: str) -> bool:
        """Record that a site gave no processor; return whether the site is left out from now on."""
        self._faults[name] = self._faults.get(name, 0) + 1
        # Equal, not at least: the caller tells of it once.
        return self._faults[name] == PATIENCE

    def worked(self, name: str) -> None:
        """Clear a site's faults after a success."""
        self._faults.pop(name, None)
