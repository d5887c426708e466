"""Leases whose workers are admitted, and the token that each worker shows."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar.dispatch.wire import Hello

LONGEST = 500
"""Characters of a worker's name."""


@dataclass(slots=True)
class AdmittedLease:
    """
    A lease whose workers are admitted.

    Parameters
    ----------
    pool
        Pool whose tasks the workers run.
    site
        Name of the site that started the workers.
    processors
        Greatest number of processors of all the lease's workers together.
    token
        Token that each worker shows.
    on_join
        Called when the first worker has connected; None: nothing is called.
    on_leave
        Called when a worker has gone that was not told to leave; None: nothing is called.
    dismissed
        Whether the workers get no more tasks, and leave when they have none.
    workers
        Processors of each connected worker, by name.
    """

    pool: str
    site: str
    processors: int
    token: str
    on_join: Callable[[], None] | None = None
    on_leave: Callable[[], None] | None = None
    dismissed: bool = False
    workers: dict[str, int] = field(default_factory=dict)

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
            and 1 <= hello.processors <= self.processors - others
            and len(hello.worker) <= LONGEST
            # The name holds the lease, so that no worker can take the name, and the tasks, of
            # another lease's worker.
            and hello.worker.startswith(f"{hello.site}-{hello.lease}-")
        )


def lease_token(secret: str, lease: str) -> str:
    """
    Derive the token of a lease's workers from the service's secret (HMAC-SHA-256, RFC 2104).

    The token need not be stored: after a restart the service derives the same one.
    """
    return hmac.new(secret.encode(), f"worker lease {lease}".encode(), hashlib.sha256).hexdigest()


def has_lease_token(secret: str, hello: Hello) -> bool:
    """Check a worker's token in constant time, whether the named lease is known or not."""
    expected = lease_token(secret, hello.lease)
    return hmac.compare_digest(hello.token.encode(), expected.encode())
