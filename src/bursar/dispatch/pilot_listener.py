"""
The way in for workers of pilots, which run on other machines.

Nothing is said in clear, and nothing to anybody who has not shown the secret of a lease that is
let in: it is that lease's alone, and good for as many processors as the lease has.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar.dispatch.credential import SILENCE, Credential, PilotTerms
from bursar.dispatch.tls import make_certificate, server_context
from bursar.dispatch.wire import Hello
from bursar.dispatch.worker_listener import AcceptedConnection, WorkerListener


@dataclass(slots=True)
class _AdmittedLease:
    """A lease whose workers are let in, or were."""

    token: str
    terms: PilotTerms
    revoked: bool = False
    joined: bool = False
    workers: dict[str, int] = field(default_factory=dict)  # that are there: their processors


class PilotListener:
    """
    Listens for pilots' workers once there is one to come.

    Parameters
    ----------
    run
        Identity of the run.
    protocol
        Makes the protocol of a connection.
    turn_out
        Told of a lease whose workers are to leave.
    silence
        Seconds, about, after which a machine that does not answer is taken to be gone.
    """

    def __init__(
        self,
        run: str,
        protocol: Callable[[], AcceptedConnection],
        turn_out: Callable[[str], None],
        silence: float = SILENCE,
    ) -> None:
        self._run = run
        self._entrance = WorkerListener(protocol, silence)
        self._turn_out = turn_out
        self._silence = silence
        self._certificate = ""
        self._key = b""
        self._admitted: dict[str, _AdmittedLease] = {}

    # For sites; see bursar.dispatch.launch.PilotAdmission.

    async def credential(self, terms: PilotTerms) -> bytes:
        """Lets the workers of a lease in from now on; what they had before is good no more."""
        _, port = await self.open(terms.host)
        token = secrets.token_urlsafe(32)
        self._admitted[terms.lease] = _AdmittedLease(token, terms)
        return Credential(
            host=terms.host,
            port=port,
            token=token,
            certificate=self._certificate,
            run=self._run,
            site=terms.site,
            lease=terms.lease,
            processors=terms.processors,
            idle=terms.idle,
            patience=terms.patience,
            silence=self._silence,
        ).encode()

    def revoke(self, lease: str) -> None:
        """A lease's workers are let in no more, and those that are there leave."""
        admitted = self._admitted.get(lease)
        if admitted is not None and not admitted.revoked:
            admitted.revoked = True
            self._turn_out(lease)

    # For the dispatcher.

    async def open(self, host: str) -> tuple[str, int]:
        """
        Listens where a host name leads to, unless it does already; the address.

        Raises
        ------
        SiteError
            When that cannot be.
        """
        if not self._certificate:
            self._certificate, self._key = make_certificate()
        return self._entrance.open(host, lambda: server_context(self._certificate, self._key))

    def lets_in(self, hello: Hello) -> bool:
        """Whether a worker may come in; one that is let in counts until :meth:`left`."""
        admitted = self._admitted.get(hello.lease)
        known = admitted or _NOBODY
        # Even of a lease that nobody has heard of, finding out takes as long.
        right = hmac.compare_digest(hello.token.encode(), known.token.encode())
        if not right or admitted is None or admitted.revoked:
            return False
        if hello.site != admitted.terms.site or hello.processors < 1:
            return False
        if not hello.worker.startswith(f"{hello.site}-{hello.lease}-"):  # another's name
            return False
        if sum(admitted.workers.values()) + hello.processors > admitted.terms.processors:
            return False
        admitted.workers[hello.worker] = hello.processors
        return True

    def is_turned_out(self, hello: Hello) -> bool:
        """Whether somebody was let in once, and is not any more."""
        admitted = self._admitted.get(hello.lease)
        return (
            admitted is not None
            and admitted.revoked
            and hmac.compare_digest(hello.token.encode(), admitted.token.encode())
        )

    def joined(self, lease: str) -> None:
        """A worker that was let in is at work."""
        admitted = self._admitted[lease]
        if not admitted.joined:
            admitted.joined = True
            if admitted.terms.on_join is not None:
                admitted.terms.on_join()

    def left(self, lease: str, worker: str) -> None:
        """Forgets a worker that is gone, and tells whoever wants to know of it."""
        admitted = self._admitted.get(lease)
        if admitted is None:
            return
        admitted.workers.pop(worker, None)
        if not admitted.revoked and admitted.terms.on_leave is not None:
            admitted.terms.on_leave()

    async def close(self) -> None:
        """Listens no more; connections that are just being made end."""
        await self._entrance.close()


_NOBODY = _AdmittedLease(
    secrets.token_urlsafe(32), PilotTerms(lease="", site="", host="", processors=0)
)
