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
        Whose tasks they run.
    site
        Name of the site.
    processors
        That its workers may have between them.
    token
        What they show.
    on_join
        Told when the first of them is there; None: nobody is.
    on_leave
        Told when one has gone that was not sent away; None: nobody is.
    dismissed
        They get nothing more, and are let go.
    workers
        That are there: their processors.
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
        """Whether a worker with the right token may join without exceeding the processors."""
        others = self.ready - self.workers.get(hello.worker, 0)
        return (
            hello.site == self.site
            and 1 <= hello.processors <= self.processors - others
            and len(hello.worker) <= LONGEST
            and hello.worker.startswith(f"{hello.site}-{hello.lease}-")
        )


def lease_token(secret: str, lease: str) -> str:
    """
    Derive the token of a lease's workers from the service's secret (HMAC-SHA-256, RFC 2104).

    The token need not be stored: after a restart the service derives the same.

    It follows from the service's secret, so that another life of the service knows it again
    without having written it down (HMAC-SHA-256, RFC 2104).
    """
    return hmac.new(secret.encode(), f"worker lease {lease}".encode(), hashlib.sha256).hexdigest()


def has_lease_token(secret: str, hello: Hello) -> bool:
    """Check a worker's token in constant time, whether its lease is known or not."""
    expected = lease_token(secret, hello.lease)
    return hmac.compare_digest(hello.token.encode(), expected.encode())
