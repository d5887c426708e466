"""
The listener for workers of pilots, which run on other machines.

All traffic is over TLS, and nothing is sent to a peer that has not shown the secret of an
admitted lease. Each lease has its own secret, which admits as many processors as the lease has.
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
    """A lease whose workers are admitted, or were admitted until the lease was revoked."""

    token: str
    terms: PilotTerms
    revoked: bool = False
    joined: bool = False
    workers: dict[str, int] = field(default_factory=dict)  # that are there: their processors


class PilotListener:
    """
    Admits workers of pilots; listens from the first credential on.

    Parameters
    ----------
    run
        Identity of the run.
    protocol
        Factory of the protocol of each connection.
    turn_out
        Called with the name of a lease whose workers are to leave.
    on_failure
        Called with the error when no more workers can be admitted by a fault of ours.
    silence
        Approximate seconds after which a machine that does not answer is taken to be gone.
    """

    def __init__(
        self,
        run: str,
        protocol: Callable[[], AcceptedConnection],
        turn_out: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
        silence: float = SILENCE,
    ) -> None:
        self._run = run
        self._listener = WorkerListener(protocol, silence, on_failure)
        self._turn_out = turn_out
        self._silence = silence
        self._certificate = ""
        self._key = b""
        self._admitted: dict[str, _AdmittedLease] = {}

    # For sites; see bursar.worker.launch.PilotAdmission.

    async def credential(self, terms: PilotTerms) -> bytes:
        """Admit the workers of a lease from now on; a former credential becomes void."""
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
        """Admit no more workers of a lease, and have connected workers leave."""
        admitted = self._admitted.get(lease)
        if admitted is not None and not admitted.revoked:
            admitted.revoked = True
            self._turn_out(lease)

    # For the dispatcher.

    async def open(self, host: str) -> tuple[str, int]:
        """
        Listen on the interface of a host name, unless that is done already; return the address.

        Raises
        ------
        SiteError
            When the address cannot be listened on.
        """
        if not self._certificate:
            self._certificate, self._key = make_certificate()
        return self._listener.open(host, lambda: server_context(self._certificate, self._key))

    def lets_in(self, hello: Hello) -> bool:
        """Admit a worker if the lease has room, until :meth:`left`; return whether so."""
        admitted = self._admitted.get(hello.lease)
        known = admitted or _NOBODY
        # The comparison takes as long for an unknown lease, so that timing reveals no name.
        right = hmac.compare_digest(hello.token.encode(), known.token.encode())
        if not right or admitted is None or admitted.revoked:
            return False
        if hello.site != admitted.terms.site or hello.processors < 1:
            return False
        if not hello.worker.startswith(f"{hello.site}-{hello.lease}-"):  # another's name
            return False
        # A secret that leaks admits no more processors than the lease has.
        if sum(admitted.workers.values()) + hello.processors > admitted.terms.processors:
            return False
        admitted.workers[hello.worker] = hello.processors
        return True

    def is_turned_out(self, hello: Hello) -> bool:
        """Whether the worker shows the secret of a lease that was revoked."""
        admitted = self._admitted.get(hello.lease)
        return (
            admitted is not None
            and admitted.revoked
            and hmac.compare_digest(hello.token.encode(), admitted.token.encode())
        )

    def joined(self, lease: str) -> None:
        """Note that an admitted worker of a lease has joined the dispatcher."""
        admitted = self._admitted[lease]
        if not admitted.joined:
            admitted.joined = True
            if admitted.terms.on_join is not None:
                admitted.terms.on_join()

    def left(self, lease: str, worker: str) -> None:
        """Forget a worker, and call the ``on_leave`` of a lease that was not revoked."""
        admitted = self._admitted.get(lease)
        if admitted is None:
            return
        admitted.workers.pop(worker, None)
        if not admitted.revoked and admitted.terms.on_leave is not None:
            admitted.terms.on_leave()

    async def close(self) -> None:
        """Stop listening, and end connections that are still unauthenticated."""
        await self._listener.close()


_NOBODY = _AdmittedLease(
    secrets.token_urlsafe(32), PilotTerms(lease="", site="", host="", processors=0)
)
