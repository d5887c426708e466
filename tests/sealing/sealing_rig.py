"""An authority, users, workers, and both ends of sealing between them."""

from dataclasses import dataclass, field

from cryptography import x509

from bursar.model.site import SealLevel
from bursar.sealing.certificates import Identity, TrustStore
from bursar.sealing.task_sealing import LIFETIME, TaskOpener, TaskSealer
from bursar.service.identity.issuing import issue, make_authority, make_revocation_list

NOW = 1.8e9
DAY = 86_400.0


@dataclass
class World:
    """
    Who is there; the clock is turned by the tests.

    Attributes
    ----------
    now
        Seconds since the epoch.
    """

    now: float = NOW
    authority: Identity = field(default_factory=lambda: make_authority("test 1", NOW))

    def __post_init__(self) -> None:
        self.ann = self.user("ann")
        self.bob = self.user("bob")
        self.worker = self.made("worker", "pool")
        self.other_worker = self.made("worker", "others")

    def made(self, kind: str, name: str, days: float = 365.0) -> Identity:
        """Somebody's key and certificate."""
        hosts = ("localhost",) if kind == "server" else ()
        return issue(self.authority, kind, name, now=self.now, days=days, hosts=hosts)

    def user(self, name: str, days: float = 365.0) -> Identity:
        """A user's."""
        return self.made("user", name, days)

    def trust(self, *revoked: Identity) -> TrustStore:
        """The authority, which has revoked these."""
        serials = [each.certificate.serial_number for each in revoked]
        lists = [make_revocation_list(self.authority, serials, 1, self.now)] if revoked else []
        return TrustStore([self.authority.certificate], lists)

    def sealer(
        self,
        level: SealLevel,
        user: Identity | None = None,
        recipient: x509.Certificate | None = None,
        lifetime: float = LIFETIME,
    ) -> TaskSealer:
        """A user's end; Ann's, to the workers."""
        return TaskSealer(
            recipient or self.worker.certificate,
            user or self.ann,
            self.trust(),
            level=level,
            lifetime=lifetime,
            clock=lambda: self.now,
        )

    def opener(self, *identities: Identity, trust: TrustStore | None = None) -> TaskOpener:
        """The workers' end."""
        return TaskOpener(
            identities or (self.worker,), trust or self.trust(), clock=lambda: self.now
        )
