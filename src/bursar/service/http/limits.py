"""How much and how fast anybody may ask."""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

MOST_WAIT = 60.0
"""Seconds for which a request may ask to be held back."""

MOST_STRANGERS = 10_000
"""Addresses or users of which it is remembered how much they have asked."""

MiB = 1 << 20


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the service puts up with.

    Parameters
    ----------
    json_bytes, submission_bytes, file_bytes, archive_bytes
        Of one request's body: of most; of tasks; of a file; of an archive as it is sent.
    unpacked_bytes, members, ratio
        Of an archive: all its files together, how many there are, and how often larger they are
        than the archive (small archives may be as large as they like).
    instance_bytes
        Of all files that a client may put into one instance.
    buffered_bytes
        Of all bodies that are being read into memory, together; of one user's, half of it.
    answered_bytes
        Of all answers with results that wait in memory to be taken, together; of one user's, half
        of it, or a single one.
    header_bytes
        Of a request's line and headers.
    header_seconds
        In which these must have come.
    body_rate
        Bytes per second that a body must come with, on average over ``body_seconds``.
    body_seconds
        After which the rate is looked at, again and again.
    idle_seconds
        After which a connection without a request ends.
    send_seconds
        In which a client must have read something of what is sent to it.
    connections, connections_per_address
        At a time.
    rate, burst
        Requests per second of one user, and how many at once.
    stranger_rate, stranger_burst
        Requests per second of one address that need no identity, and how many at once.
    failure_rate, failure_burst
        Attempts per second of one address to be somebody that it is not, and how many at once.
    requests, streams
        That a user may have under way at a time: all of them; those that stay open.
    stream_seconds
        After which a stream ends, to be taken up again by who may still ask for it: a token that
        was revoked is not looked at in between.
    heartbeat
        Seconds after which a stream says that it is still there.
    """

    json_bytes: int = MiB
    submission_bytes: int = 32 * MiB
    file_bytes: int = 4096 * MiB
    archive_bytes: int = 1024 * MiB
    unpacked_bytes: int = 8192 * MiB
    members: int = 100_000
    ratio: int = 100
    instance_bytes: int = 16_384 * MiB
    buffered_bytes: int = 256 * MiB
    answered_bytes: int = 256 * MiB
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    body_rate: float = 1024.0
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    send_seconds: float = 60.0
    connections: int = 4096
    connections_per_address: int = 2048
    rate: float = 1000.0
    burst: float = 2000.0
    stranger_rate: float = 50.0
    stranger_burst: float = 200.0
    failure_rate: float = 0.5
    failure_burst: float = 20.0
    requests: int = 256
    streams: int = 64
    stream_seconds: float = 600.0
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens that come per second, and how many are kept."""

    rate: float
    burst: float


@dataclass(slots=True)
class _Bucket:
    level: float  # tokens that were there at the moment ``at``
    at: float


class Buckets:
    """
    A token bucket for each who asks (Turner, 1986: the leaky bucket as a meter).

    Parameters
    ----------
    rate
        Tokens that come per second.
    burst
        Tokens that a bucket holds; it is full at first.
    clock
        Seconds, never going back.
    most
        Buckets kept; beyond it the one longest unused is forgotten, which makes it full.
    own
        Of those who have another pace.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        clock: Callable[[], float],
        most: int = MOST_STRANGERS,
        own: Mapping[str, Pace] = MappingProxyType({}),
    ) -> None:
        self._pace = Pace(rate, burst)
        self._own = own
        self._clock = clock
        self._most = most
        self._buckets: dict[str, _Bucket] = {}  # the longest unused one first

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, who: str) -> float:
        """Takes a token if there is one; seconds until there is one, 0: it was taken."""
        now = self._clock()
        pace = self._own.get(who, self._pace)
        bucket = self._buckets.pop(who, None)
        if bucket is None:
            bucket = _Bucket(pace.burst, now)
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        came = pace.rate * max(0.0, now - bucket.at)
        bucket.level, bucket.at = min(pace.burst, bucket.level + came), max(now, bucket.at)
        self._buckets[who] = bucket
        if bucket.level < 1.0:
            return (1.0 - bucket.level) / pace.rate
        bucket.level -= 1.0
        return 0.0


class Room:
    """
    How many of something each may have at a time.

    Parameters
    ----------
    most
        Of each.
    own
        Of those who may have more or fewer.
    """

    def __init__(self, most: int, own: Mapping[str, int] = MappingProxyType({})) -> None:
        self._most = most
        self._own = own
        self._taken: dict[str, int] = {}

    def enter(self, who: str) -> bool:
        """Whether there is room for one more; then it is taken until :meth:`leave`."""
        taken = self._taken.get(who, 0)
        if taken >= self._own.get(who, self._most):
            return False
        self._taken[who] = taken + 1
        return True

    def leave(self, who: str) -> None:
        """One is gone."""
        taken = self._taken[who] - 1
        if taken:
            self._taken[who] = taken
        else:
            del self._taken[who]


class Shares:
    """
    Room for all, of which each may take as much as then stays free.

    So nobody alone can take it all, and the more there are who take a lot, the less each may
    (dynamic thresholds: Choudhury and Hahne, 1998).

    Parameters
    ----------
    most
        Of all together.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: dict[str, int] = {}

    def take(self, who: str, size: int, *, lone: bool = False) -> bool:
        """
        Whether there is room for so much more; then it is taken until :meth:`give_back`.

        Parameters
        ----------
        lone
            There is for one piece of each, whatever its size.
        """
        taken = self._taken.get(who, 0) + size
        if taken > self._free - size and not (lone and taken == size):
            return False
        self._taken[who] = taken
        self._free -= size
        return True

    def give_back(self, who: str, size: int) -> None:
        """So much is free again."""
        self._free += size
        left = self._taken.get(who, 0) - size
        if left:
            self._taken[who] = left
        else:
            self._taken.pop(who, None)


def neighbourhood(address: str) -> str:
    """
    What stands for an address where somebody may have many: of IPv6 the network of 64 bits.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
