"""The information index keeps what sites publish; every reading carries its age."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bursar.broker.directory.status_validation import validate_status
from bursar.model.errors import InputError, SiteError
from bursar.model.money import Refusal
from bursar.model.status import SiteStatus, StatusReading

# Readings of an index at one time, with the age of each status.


class StatusSnapshot:
    """
    An immutable set of statuses by site.

    Parameters
    ----------
    statuses
        Statuses by site; not copied, so the caller must not change the mapping.
    """

    __slots__ = ("_published", "statuses")

    def __init__(self, statuses: Mapping[str, SiteStatus]) -> None:
        self.statuses = statuses
        self._published: NDArray[np.float64] | None = None

    @property
    def published_at(self) -> NDArray[np.float64]:
        """Publication time of each site's status, in order, seconds; computed once."""
        if self._published is None:
            made = np.fromiter(
                (status.at for status in self.statuses.values()),
                dtype=np.float64,
                count=len(self.statuses),
            )
            made.flags.writeable = False
            self._published = made
        return self._published


class StatusReadings(Mapping[str, StatusReading]):
    """
    Readings by site: the statuses of one version, with their ages at the time of reading.

    Reading costs the same however many sites there are: ages are computed on access.

    Parameters
    ----------
    knowledge
        Snapshot of the index's statuses.
    now
        Time of reading, seconds.
    """

    __slots__ = ("_knowledge", "now")

    def __init__(self, knowledge: StatusSnapshot, now: float) -> None:
        self._knowledge = knowledge
        self.now = now

    @property
    def statuses(self) -> Mapping[str, SiteStatus]:
        """Status of each site; the same object as long as the version is the same."""
        return self._knowledge.statuses

    @property
    def ages(self) -> NDArray[np.float64]:
        """Ages of all statuses, seconds, in the order of the statuses."""
        return self.now - self._knowledge.published_at

    def __getitem__(self, site: str) -> StatusReading:
        status = self._knowledge.statuses[site]
        return StatusReading(status, self.now - status.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._knowledge.statuses)

    def __len__(self) -> int:
        return len(self._knowledge.statuses)


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
    :class:`bursar.broker.directory.status_feeds.StatusPoller` and ``next_due``.

    Parameters
    ----------
    clock
        The present time, seconds.
    expiry
        Seconds after which what a site said counts no more.
    sources
        Sites that the index asks, by name.
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
        self._faults: dict[str, str] = {}
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
        self._entries.put(status)
        return None

    def failed(self, site: str, reason: str) -> None:
        """Note that a site gave no answer, or no sensible one."""
        if site not in self._faults and self._on_fault is not None:
            self._on_fault(site, reason)
        self._faults[site] = reason

    @property
    def faults(self) -> Mapping[str, str]:
        """Faults of the sites that failed to answer when last asked, by name."""
        return self._faults

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
        return StatusReadings(self._entries.knowledge, now)

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
            received.extend(index._entries.knowledge.statuses.values())
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
            self._faults.pop(site, None)
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

    A reader keeps the snapshot that it was given: the statuses are copied before they change, once
    for all changes until the next reading.

    Parameters
    ----------
    expiry
        Seconds after which what a site said counts no more.
    """

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._statuses: dict[str, SiteStatus] = {}
        self._knowledge: StatusSnapshot | None = None
        self._oldest = math.inf  # nothing is older; a lower bound, so that it costs nothing
        self.version = 0

    @property
    def knowledge(self) -> StatusSnapshot:
        """Snapshot of all statuses; the same object until something changes."""
        if self._knowledge is None:
            self._knowledge = StatusSnapshot(self._statuses)
        return self._knowledge

    def put(self, status: SiteStatus) -> None:
        """Store a status unless a later one is known."""
        self.merge((status,))

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
        if self._knowledge is not None:
            self._statuses = dict(self._statuses)
            self._knowledge = None
        self.version += 1
        return self._statuses
