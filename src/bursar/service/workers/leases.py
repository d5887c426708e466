"""Leases whose workers are let in, and the secret that each of their workers shows."""

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
    A lease whose workers are let in.

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
        """Processors whose workers are there."""
        return sum(self.workers.values())

    def has_room(self, hello: Hello) -> bool:
        """Whether a worker with the right token may come in."""
        others = self.ready - self.workers.get(hello.worker, 0)
        return (
            hello.site == self.site
            and 1 <= hello.processors <= self.processors - others
            and len(hello.worker) <= LONGEST
            and hello.worker.startswith(f"{hello.site}-{hello.lease}-")
        )


def lease_token(secret: str, lease: str) -> str:
    """
    What a lease's workers show.

    It follows from the service's secret, so that another life of the service knows it again
    without having written it down (HMAC-SHA-256, RFC 2104).
    """
    return hmac.new(secret.encode(), f"worker lease {lease}".encode(), hashlib.sha256).hexdigest()


def has_lease_token(secret: str, hello: Hello) -> bool:
    """Whether a worker has the secret of its lease, known or not; it takes as long either way."""
    expected = lease_token(secret, hello.lease)
    return hmac.compare_digest(hello.token.encode(), expected.encode())
