"""What a service keeps of a worker's connection."""

from collections.abc import Callable

from bursar.dispatch.wire import Hello
from bursar.engine.worker_connection import ConnectionHandler, FrameLimits, WorkerConnection
from bursar.service.workers.bounds import WORKER_FRAME
from bursar.service.workers.seal_key import Version

UNAUTHENTICATED_FRAME = 1 << 19
"""Bytes of the largest frame before authentication; a hello with all held tasks fits."""

_LONGEST = 255  # characters of a machine's name
_LIMITS = FrameLimits(unauthenticated=UNAUTHENTICATED_FRAME, authenticated=WORKER_FRAME)


class ServiceWorkerConnection(WorkerConnection):
    """
    A worker's connection with a service, which acknowledges outcomes and may send a seal key.

    Attributes
    ----------
    host, has_seal_key
        Fields of the worker's :class:`~bursar.dispatch.wire.Hello`.
    leaving
        Whether the worker gets no more tasks, and is to leave once it has none.
    seal_key
        Version of the key that the worker was sent; None: none was.
    unrecorded
        Number of outcomes received over the connection that are not yet durable.
    """

    def __init__(self, handler: ConnectionHandler) -> None:
        super().__init__(handler, _LIMITS)
        self.host = ""
        self.leaving = False
        self.has_seal_key = False
        self.seal_key: Version | None = None
        self.unrecorded = 0

    def introduce(self, hello: Hello) -> None:
        """Mark the connection as authenticated, and take the worker's data from the hello."""
        super().introduce(hello)
        # The host is shown to users and written to logs: nobody may fill these with it.
        self.host = hello.host[:_LONGEST]
        self.has_seal_key = hello.has_seal_key

    def recording(
        self, count: int, then: Callable[["ServiceWorkerConnection"], None]
    ) -> Callable[[], None]:
        """
        Count received outcomes as not yet durable; return the callback for when they are.

        The callback acknowledges the outcomes to the worker, which keeps them until then.

        Parameters
        ----------
        count
            Number of outcomes; 0: nothing is acknowledged.
        then
            Called with this connection after the acknowledgement.
        """
        self.unrecorded += count

        # The worker forgets as many outcomes as are acknowledged, from the first on: outcomes must
        # be acknowledged in the order in which they came, which the recorder's queue keeps.
        def recorded() -> None:
            self.unrecorded -= count
            if count:
                self.acknowledge(count)
            then(self)

        return recorded
