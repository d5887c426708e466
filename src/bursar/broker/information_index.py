"""The information index: what sites say of themselves, checked, and how old it is when read."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus, StatusReading
from bursar.model.money import Refusal

# Check that a status that a site reports can be true, before it is used.

LARGEST = 2**53
"""Largest count or number of bytes; up to here floating-point numbers are exact, too."""

LONGEST = 1000
"""Most characters of a text."""

MOST = 256
"""Most attributes of a site."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def validate_status(
    status: object, *, site: str, now: float, processors: int | None = None
) -> SiteStatus | Refusal:
    """
    Return a site's reported status if the values can be true, else a refusal.

    Parameters
    ----------
    now
        Seconds on the reader's clock.
    processors
        Number of processors of the site; None where unknown.

    Returns
    -------
    SiteStatus or Refusal
        The status, or a refusal of a wrong type, a number that is nan, negative or out of range,
        another site's name, or a future time.
    """
    if not isinstance(status, SiteStatus):
        what = "nothing" if status is None else f"a {type(status).__name__}"
        return Refusal(f"said {what}, where a status is expected", final=False)
    problem = (
        _of_identity(status, site, now)
        or _of_numbers(status, processors)
        or (status.attributes and _of_attributes(status.attributes))
    )
    return Refusal(problem, final=False) if problem else status


def _of_identity(status: SiteStatus, site: str, now: float) -> str:
    if status.site != site:
        return f"speaks for {_shown(status.site)}"
    if not _is_finite(status.at):
        return f"names no moment, but {_shown(status.at)}"
    if status.at > now:
        return f"speaks of a time {status.at - now:g} s ahead"
    if not isinstance(status.state, str) or len(status.state) > LONGEST:
        return f"state: expected a text, got {_shown(status.state)}"
    return ""


def _of_numbers(status: SiteStatus, processors: int | None) -> str:
    for name, count in (
        ("free_processors", status.free_processors),
        ("running", status.running),
        ("waiting", status.waiting),
    ):
        if not _is_count(count):
            return f"{name}: expected a count, got {_shown(count)}"
    if processors is not None and status.free_processors > processors:
        return f"free_processors: it has {processors}, got {status.free_processors}"
    wait = status.traversal_time
    if wait is not None and not (_is_finite(wait) and wait >= 0):
        return f"traversal_time: expected seconds, got {_shown(wait)}"
    if status.free_memory is not None and not _is_count(status.free_memory):
        return f"free_memory: expected bytes, got {_shown(status.free_memory)}"
    return ""


def _of_attributes(attributes: object) -> str:
    if not isinstance(attributes, Mapping):
        return f"attributes: expected names and values, got {_shown(attributes)}"
    if len(attributes) > MOST:
        return f"attributes: expected at most {MOST}, got {len(attributes)}"
    seen = set()
    for name, value in attributes.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST:
            return f"attributes: {_shown(name)} is not a name"
        if name.lower() in seen:
            return f"attributes: {_shown(name)} is there twice, whatever its case"
        seen.add(name.lower())
        if not _is_fact(value):
            return f"attributes.{name[:40]}: expected a finite value, got {_shown(value)}"
    return ""


def _is_count(value: object) -> bool:
    # Not isinstance: True would pass for a count.
    return type(value) is int and 0 <= value <= LARGEST


def _is_finite(value: object) -> bool:
    # A whole number may be too large to be compared as a floating-point one.
    if type(value) is int:
        return abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_fact(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST
    return isinstance(value, bool) or _is_finite(value)


def _shown(value: object) -> str:
    """Format a value, short enough for one line."""
    if type(value) is int and abs(value) > LARGEST:
        return "a number too large"
    text = ascii(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"


# Readings of an index at one time, with the age of each status.


class StatusReadings(Mapping[str, StatusReading]):
    """
    Readings by site: the statuses of one version, with their ages at the time of reading.

    Reading costs the same however many sites there are: ages are computed on access.

    Parameters
    ----------
    statuses
        Status of each site, which nobody changes; the same object as long as the version is the
        same.
    now
        Time of reading, seconds.
    """

    __slots__ = ("now", "statuses")

    def __init__(self, statuses: Mapping[str, SiteStatus], now: float) -> None:
        self.statuses = statuses
        self.now = now

    def __getitem__(self, site: str) -> StatusReading:
        status = self.statuses[site]
        return StatusReading(status, self.now - status.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self.statuses)

    def __len__(self) -> int:
        return len(self.statuses)


EXPIRY = 300.0
"""Default seconds until a silent site counts as gone, as in gLite's information supermarket."""

Source = Callable[[], SiteStatus | None]
"""Asks a site for its status; None or a SiteError stands for no answer."""


class InformationIndex:
    """
    The last statuses of sites, on one level of a hierarchy of such indexes.

    Statuses come in three ways. Sites publish them (:meth:`publish`); a poller asks sites and
    passes on the answers (:meth:`receive_status`); or the index asks sources and the indexes
    below itself, in rounds (:meth:`refresh`). Between two rounds the values stay as they are: the
    interval is their *time to live* (Cavalieri et al. 2003, section 2.1: "published values remain
    unchanged till the expiration of their TTL"). What an index takes from below keeps
    the moment at which the site said it, so that the ages add up: "the higher is the
    destination the older is the information". A site that answers at once is seen on a level
    with an age of at least the delays up to there, and at most these and the intervals.

    A site that is silent, or says what cannot be true, keeps its entry until that is older
    than ``expiry``; then it is not there any more, on any level. ``on_fault`` is told once
    until the site answers again.

    It decides by the times it is given, and never waits: see
    :class:`bursar.broker.status_feeds.StatusPoller` and ``next_due``.

    Parameters
    ----------
    clock
        The present time, seconds.
    expiry
        Seconds after which what a site said counts no more.
    below
        Indexes that this index asks.
    every
        Seconds between two rounds of asking; infinite for one round only.
    delay
        Seconds from when something is said below to when it can be read here.
    first
        When the first round is, seconds on the clock.
    processors
        Number of processors of each site, by name: other sites may not publish, and none may claim
        more. None: no such check is made.
    on_fault
        Called with the name of a site that does not answer, or not sensibly, and what is wrong.

    Raises
    ------
    InputError
        When a value is out of range, or what answers all the time would expire.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        expiry: float = EXPIRY,
        sources: Mapping[str, Source] | None = None,
        below: Sequence["InformationIndex"] = (),
        every: float = math.inf,
        delay: float = 0.0,
        first: float = 0.0,
        processors: Mapping[str, int] | None = None,
        on_fault: Callable[[str, str], None] | None = None,
    ) -> None:
        if not expiry > 0:
            raise InputError(f"must be positive, got {expiry:g}", where="expiry")
        if not every > 0:
            raise InputError(f"must be positive, got {every:g}", where="every")
        if not 0 <= delay < math.inf:
            raise InputError(f"must be finite and not negative, got {delay:g}", where="delay")
        self._clock = clock
        self._entries = StatusEntries(expiry)
        self._sources = sources or {}
        self._below = below
        self._every = every
        self._delay = delay
        self._first = first
        self._processors = processors
        self._on_fault = on_fault
        self.faults: dict[str, str] = {}
        self._coming: deque[tuple[float, list[SiteStatus]]] = deque()
        self._due = first if self._sources or below else math.inf
        self._next = self._soonest()
        if expiry < self.oldest < math.inf:
            raise InputError(
                f"what is read here is up to {self.oldest:g} s old, got {expiry:g} s",
                where="expiry",
                hint="refresh more often, or let values count for longer",
            )

    # What it hears.

    def publish(self, status: object) -> Refusal | None:
        """
        Store the status that a site publishes about itself.

        A status older than the stored one of that site is accepted but not stored: messages may
        overtake each other.

        Returns
        -------
        Refusal or None
            Why the status is not accepted, as when it names no site or cannot be true; None when
            it is accepted.
        """
        site = getattr(status, "site", None)
        if not isinstance(site, str) or not site:
            return Refusal("names no site", final=False)
        return self.receive_status(site, status)

    def receive_status(self, site: str, reading: object) -> Refusal | None:
        """Take in a site's answer, of whatever type; None: it is accepted."""
        status = self._checked(site, reading, self._clock())
        if isinstance(status, Refusal):
            return status
        self._entries.merge((status,))
        return None

    def failed(self, site: str, reason: str) -> None:
        """Note that a site gave no answer, or no sensible one."""
        if site not in self.faults and self._on_fault is not None:
            self._on_fault(site, reason)
        self.faults[site] = reason

    # What is read.

    @property
    def oldest(self) -> float:
        """Greatest age of a reading, seconds, for sites that answer at once."""
        if not self._sources and not self._below:
            return 0.0
        return self._every + self._delay + max((index.oldest for index in self._below), default=0.0)

    @property
    def version(self) -> int:
        """Counter of changes of the index's content."""
        self._settle(self._clock())
        return self._entries.version

    def read(self) -> StatusReadings:
        """Readings of all known sites, by name."""
        now = self._clock()
        self._settle(now)
        return StatusReadings(self._entries.shared(), now)

    # Rounds.

    @property
    def next_due(self) -> float:
        """Time when this index or one below asks next, seconds; infinite for never."""
        return self._next

    def refresh(self, now: float) -> None:
        """
        Ask the sources and indexes that are due, lower indexes first.

        A round that was missed is not made up for: what sites say is what is true now.
        """
        if now < self._next:
            return
        for index in self._below:
            index.refresh(now)
        if now >= self._due:
            self._ask(now)
            self._due = self._round_after(now)
        self._next = self._soonest()

    def _ask(self, now: float) -> None:
        received = [
            status
            for site, source in self._sources.items()
            if (status := self._answer(site, source, now)) is not None
        ]
        for index in self._below:
            index._settle(now)
            received.extend(index._entries.shared().values())
        # Delayed as a message would be: the ages at this level then add up as on a real network.
        self._coming.append((now + self._delay, received))
        self._settle(now)  # nobody may look for a long time

    def _answer(self, site: str, source: Source, now: float) -> SiteStatus | None:
        try:
            reading = source()
        except SiteError as error:
            self.failed(site, str(error))
            return None
        if reading is None:
            self.failed(site, "does not answer")
            return None
        status = self._checked(site, reading, now)
        return None if isinstance(status, Refusal) else status

    def _checked(self, site: str, reading: object, now: float) -> SiteStatus | Refusal:
        """Return the status that a site published if valid, else a refusal."""
        has = None
        if self._processors is not None:
            has = self._processors.get(site)
            if has is None:
                return Refusal("there is no such site", final=True)
        status = validate_status(reading, site=site, now=now, processors=has)
        if isinstance(status, Refusal):
            self.failed(site, status.reason)
        else:
            self.faults.pop(site, None)
        return status

    def _settle(self, now: float) -> None:
        """Store statuses that have arrived by now, and drop statuses that are too old."""
        while self._coming and self._coming[0][0] <= now:
            self._entries.merge(self._coming.popleft()[1])
        self._entries.drop_expired(now)

    def _round_after(self, now: float) -> float:
        """Return the time of the next round; rounds do not drift."""
        if math.isinf(self._every):
            return math.inf
        number = math.floor((now - self._first) / self._every) + 1
        # Counted from the first round, not from the last one: delays do not add up.
        due = self._first + number * self._every
        # Rounding may put the multiple on the present moment again, which would ask for ever.
        return due if due > now else self._first + (number + 1) * self._every

    def _soonest(self) -> float:
        return min([self._due, *(index.next_due for index in self._below)])


class StatusEntries:
    """
    The last status of each site.

    A reader keeps the mapping that it was given: the statuses are copied before they change, once
    for all changes until the next reading.

    Parameters
    ----------
    expiry
        Seconds after which what a site said counts no more.
    """

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._statuses: dict[str, SiteStatus] = {}
        self._is_shared = False  # whether a reader holds the present statuses
        self._oldest = math.inf  # nothing is older; a lower bound, so that it costs nothing
        self.version = 0

    def shared(self) -> Mapping[str, SiteStatus]:
        """Return all statuses, for a reader to keep; the same object until something changes."""
        self._is_shared = True
        return self._statuses

    def merge(self, statuses: Iterable[SiteStatus]) -> None:
        """Store several statuses as one change of the version, if any is new."""
        stored = self._statuses
        changed = False
        for status in statuses:
            old = stored.get(status.site)
            if old is not None and (
                status is old or status.at < old.at or (status.at == old.at and status == old)
            ):
                continue
            if not changed:
                changed = True
                stored = self._changing()
            stored[status.site] = status
            self._oldest = min(self._oldest, status.at)

    def drop_expired(self, now: float) -> None:
        """Remove statuses that are too old."""
        # A lower bound spares the pass over all sites that every reading would otherwise cost.
        if now - self._oldest <= self._expiry:
            return
        expired = [s.site for s in self._statuses.values() if now - s.at > self._expiry]
        if expired:
            stored = self._changing()
            for site in expired:
                del stored[site]
        self._oldest = min((s.at for s in self._statuses.values()), default=math.inf)

    def _changing(self) -> dict[str, SiteStatus]:
        """Return statuses that may be changed, copied if a reader holds the present ones."""
        if self._is_shared:
            self._statuses = dict(self._statuses)
            self._is_shared = False
        self.version += 1
        return self._statuses
