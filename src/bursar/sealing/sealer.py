"""The user's side of sealing: seals tasks and opens their results."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography import x509

from bursar.model.errors import InputError
from bursar.model.site import SealLevel
from bursar.sealing import levels
from bursar.sealing.certificates import (
    Identity,
    TrustStore,
    UntrustedCertificate,
    read_certificates,
    read_identities,
    read_pem,
)
from bursar.sealing.envelope import ConversationResult, MessageResult, SealError, decode
from bursar.sealing.levels import Conversation

LIFETIME = 30 * 86_400.0
"""Seconds after sealing for which workers accept a task, about, unless told otherwise."""

_REMEMBERED = 64
"""Conversations whose keys are cached, for results that arrive one after the other."""


class TaskSealer:
    """
    Seals tasks that only the workers can open, and opens their results.

    Parameters
    ----------
    recipient
        The workers' certificate, as the service shows it or, better, as it came by another way.
    identity
        The user's certificate and key.
    trust
        The authorities that vouch for the workers.
    former
        The user's earlier certificates and keys, for results of tasks sealed with them.
    level
        ``"conversation"``: one key agreement for many tasks, and a result shows that it was made
        by a holder of the workers' key; ``"message"``: one for each task and result, each signed.
    lifetime
        Seconds for which workers accept a task (at the level conversation at least half of it); the
        service cannot replay the task afterwards.
    clock
        Seconds since the epoch.

    Raises
    ------
    InputError
        When the recipient's certificate is not that of a worker that ``trust`` believes.
    """

    def __init__(
        self,
        recipient: x509.Certificate,
        identity: Identity,
        trust: TrustStore,
        *,
        former: Sequence[Identity] = (),
        level: SealLevel = "conversation",
        lifetime: float = LIFETIME,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            trust.check(recipient, "worker", clock())
        except UntrustedCertificate as error:
            raise InputError(f"tasks cannot be sealed for these workers: {error}") from None
        self._recipient = recipient
        self._identity = identity
        self._identities = (identity, *former)
        self._trust = trust
        self._level = level
        self._lifetime = lifetime
        self._clock = clock
        self._current: tuple[bytes, Conversation] | None = None
        self._renew_at = 0.0
        self._sealed = 0
        self._recalled: dict[bytes, Conversation] = {}

    def seal(self, payload: bytes, about: str) -> bytes:
        """
        Return a task's envelope.

        Parameters
        ----------
        about
            Text that the result must carry when it is opened, such as the instance and the task's
            label. It is not encrypted. Where two tasks have the same text, the service could swap
            their results.

        Raises
        ------
        SealError
            When it becomes too large.
        """
        now = self._clock()
        if self._level == "message":
            return levels.seal_task(
                self._identity, self._recipient, payload, about, now, self._lifetime
            )
        header, keys = self._talk(now)
        self._sealed += 1
        return keys.seal_task(header, payload, about)

    def open(self, envelope: bytes, about: str) -> bytes:
        """
        Open and verify a result's envelope, also of a task that another process sealed.

        Parameters
        ----------
        about
            Text with which the task was sealed.

        Raises
        ------
        SealError
            When the workers did not make it, for this user and about this.
        """
        match decode(envelope):
            case ConversationResult() as result:
                return self._recall(result).open_result(result, about)
            case MessageResult() as result:
                try:
                    worker = self._trust.vouch(result.certificate, "worker", self._clock())
                except UntrustedCertificate as error:
                    raise SealError(f"the worker: {error}") from None
                return self._open_message(result, worker.certificate, about)
            case _:
                raise SealError("it is a task, not a result")

    def _open_message(self, result: MessageResult, worker: x509.Certificate, about: str) -> bytes:
        """Open a result with the fitting one of the user's keys."""
        # A result does not say for which certificate it was sealed, and the user may have renewed
        # theirs.
        for identity in self._identities[:-1]:
            try:
                return levels.open_result(result, worker, identity, about)
            except SealError:
                continue
        return levels.open_result(result, worker, self._identities[-1], about)

    def _talk(self, now: float) -> tuple[bytes, Conversation]:
        """Return header and keys of the current conversation; begin one when it is used up."""
        if self._current is None or now >= self._renew_at or self._sealed >= levels.MOST_TASKS:
            self._current = levels.begin_conversation(
                self._identity, self._recipient, now, self._lifetime
            )
            # At half of the lifetime, so that workers take even the last task for as long as the
            # other half.
            self._renew_at = now + self._lifetime / 2
            self._sealed = 0
        return self._current

    def _recall(self, result: ConversationResult) -> Conversation:
        # The signature belongs to what is remembered: it has to be looked at, too.
        key = result.signature + result.grant
        known = self._recalled.get(key)
        if known is None:
            known = levels.recall_conversation(result, self._identities)
            if len(self._recalled) >= _REMEMBERED:
                del self._recalled[next(iter(self._recalled))]
            self._recalled[key] = known
        return known


def read_sealer(
    recipient: bytes,
    *,
    certificate: Path,
    key: Path | None = None,
    authorities: Path,
    level: SealLevel = "conversation",
) -> TaskSealer:
    """
    Return a sealer with keys and certificates from files.

    Parameters
    ----------
    recipient
        Certificate of the workers, PEM.
    certificate, key
        The user's own; without ``key`` the first file holds both, and former ones behind them.
    authorities
        Certificates of the authorities, and revocation lists if there are any.

    Raises
    ------
    InputError
        When one of them is not what is expected.
    """
    own = read_pem(certificate)
    identity, *former = read_identities(own if key is None else own + read_pem(key))
    trust = TrustStore.from_pem(read_pem(authorities))
    return TaskSealer(read_certificates(recipient)[0], identity, trust, former=former, level=level)
