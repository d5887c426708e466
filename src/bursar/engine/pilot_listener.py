"""
The listener for workers of pilots, which run on other machines.

All traffic is over TLS, and nothing is sent to a peer that has not shown the secret of an
admitted lease. Each lease has its own secret, which admits as many processors as the lease has.
"""

from collections.abc import Callable

from bursar.dispatch.credential import SILENCE, PilotTerms, make_certificate, server_context
from bursar.dispatch.worker_listener import AcceptedConnection, WorkerListener
from bursar.engine.lease_admission import LeaseAdmission, make_credential


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

    Attributes
    ----------
    admission
        Leases whose workers are admitted.
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
        self.admission = LeaseAdmission()

    # For sites; see bursar.worker.launch.PilotAdmission.

    async def credential(self, terms: PilotTerms) -> bytes:
        """Admit the workers of a lease from now on; a former credential becomes void."""
        _, port = await self.open(terms.host)
        self.admission.renew_token(terms.lease)
        entry = self.admission.admit(terms.lease, site=terms.site, processors=terms.processors)
        entry.on_join, entry.on_leave = terms.on_join, terms.on_leave
        return make_credential(
            terms,
            entry.token,
            run=self._run,
            port=port,
            certificate=self._certificate,
            silence=self._silence,
        )

    def revoke(self, lease: str) -> None:
        """Admit no more workers of a lease, and have connected workers leave."""
        if self.admission.leases.pop(lease, None) is not None:
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

    async def close(self) -> None:
        """Stop listening, and end connections that are still unauthenticated."""
        await self._listener.close()
