"""Leases whose workers are admitted, each by a secret of its own, in runs and in services."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar.dispatch.credential import Credential, PilotTerms
from bursar.dispatch.wire import Hello

LONGEST = 500
"""Characters of a worker's name."""

TokenOf = Callable[[str], str]
"""Function of a lease's name: the token that its workers show."""


@dataclass(slots=True)
class AdmittedLease:
    """
    A lease whose workers are admitted.

    Parameters
    ----------
    site
        Name of the site that started the workers.
    processors
        Greatest number of processors of all the lease's workers together.
    token
        Token that each worker shows.
    pool
        Pool whose tasks the workers run.
    on_join
        Called when the first worker has connected; None: nothing is called.
    on_leave
        Called when a worker has gone that was not told to leave; None: nothing is called.
    dismissed
        Whether the workers get no more tasks, and leave when they have none.
    workers
        Processors of each connected worker, by name.
    replaced
        Processors whose workers have said that an earlier one ended by itself, summed over all
        such ends; read only.
    """

    site: str
    processors: int
    token: str
    pool: str = ""
    on_join: Callable[[], None] | None = None
    on_leave: Callable[[], None] | None = None
    dismissed: bool = False
    workers: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    _deaths: dict[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        """Processors of the lease's connected workers."""
        return sum(self.workers.values())

    def has_room(self, hello: Hello) -> bool:
        """
        Whether a worker that has shown the right token may join.

        The worker must be of the lease's site, have a name that begins with site and lease, and
        not bring more processors than the lease has left.
        """
        # A worker that comes back before the end of its old connection was noticed is not counted
        # twice.
        others = self.ready - self.workers.get(hello.worker, 0)
        return (
            hello.site == self.site
            # A secret that leaks admits no more processors than the lease has.
            and 1 <= hello.processors <= self.processors - others
            and len(hello.worker) <= LONGEST
            # The name holds the lease, so that no worker can take the name, and the tasks, of
            # another lease's worker.
            and hello.worker.startswith(f"{hello.site}-{hello.lease}-")
        )

    def come(self, hello: Hello) -> None:
        """Count a worker that has joined, and tell whoever waits for the first one."""
        is_first = not self.workers
        self.workers[hello.worker] = hello.processors
        # A worker says the same again on each of its connections.
        if hello.deaths > self._deaths.get(hello.worker, 0):
            self._deaths[hello.worker] = hello.deaths
            self.replaced += hello.processors
        if is_first and self.on_join is not None:
            self.on_join()

    def go(self, worker: str) -> None:
        """Count a worker as gone; the site is asked at once what became of it."""
        self.workers.pop(worker, None)
        if not self.dismissed and self.on_leave is not None:
            self.on_leave()


class LeaseAdmission:
    """
    Decides which workers may join, by the secrets that they show.

    Parameters
    ----------
    token_of
        Token of each lease, the same each time; None: a lease gets a random one when it is
        admitted.

    Attributes
    ----------
    leases
        Admitted leases by name.
    is_complete
        Whether workers of any other lease are told to leave. While a restarted service has not
        announced all of its leases yet, they are refused, and try again.
    """

    def __init__(self, token_of: TokenOf | None = None) -> None:
        self._random: dict[str, str] = {}
        self._nobody = secrets.token_urlsafe(32)
        self._token_of = token_of or self._random_token
        self.leases: dict[str, AdmittedLease] = {}
        self.is_complete = token_of is None

    def renew_token(self, lease: str) -> None:
        """Give a lease another random token; whoever has the former one is refused."""
        self._random[lease] = secrets.token_urlsafe(32)

    def admit(self, lease: str, *, site: str, processors: int, pool: str = "") -> AdmittedLease:
        """Admit the workers of a lease from now on; return the lease, with its token."""
        entry = AdmittedLease(site, processors, self._token_of(lease), pool)
        self.leases[lease] = entry
        return entry

    def has_token(self, hello: Hello) -> bool:
        """Check a worker's token in constant time, whether the named lease is known or not."""
        # Nobody guesses a token byte by byte, or learns by the time taken which leases there are.
        expected = self._token_of(hello.lease)
        return hmac.compare_digest(hello.token.encode(), expected.encode())

    def is_over(self, hello: Hello) -> bool:
        """
        Whether a worker that has shown the right token is of a lease that has ended.

        Such a worker is told to leave: one that is only refused would try again until its patience
        is over.
        """
        return self.is_complete and hello.lease not in self.leases

    def admitted(self, hello: Hello) -> AdmittedLease | None:
        """Return the lease of a worker that has shown the right token and has room; or None."""
        entry = self.leases.get(hello.lease)
        return entry if entry is not None and entry.has_room(hello) else None

    def _random_token(self, lease: str) -> str:
        return self._random.get(lease, self._nobody)


def derived_token(secret: str, lease: str) -> str:
    """
    Derive the token of a lease's workers from a service's secret (HMAC-SHA-256, RFC 2104).

    The token need not be stored: after a restart the service derives the same one.
    """
    return hmac.new(secret.encode(), f"worker lease {lease}".encode(), hashlib.sha256).hexdigest()


def make_credential(
    terms: PilotTerms,
    token: str,
    *,
    run: str,
    port: int,
    certificate: str,
    silence: float,
    patience: float = 0.0,
) -> bytes:
    """
    Return the credential by which the pilots of a lease connect.

    Parameters
    ----------
    certificate
        PEM of the listener.
    patience
        Seconds for which pilots look for a lost connection at the least, whatever the terms say.
    """
    return Credential(
        host=terms.host,
        port=port,
        token=token,
        certificate=certificate,
        run=run,
        site=terms.site,
        lease=terms.lease,
        processors=terms.processors,
        idle=terms.idle,
        patience=max(terms.patience, patience),
        grace=terms.grace,
        silence=silence,
    ).encode()
