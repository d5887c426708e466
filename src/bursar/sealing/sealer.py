"""The user's end: seals tasks, opens results."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography import x509

from bursar.model.errors import InputError
from bursar.model.remote import SealLevel
from bursar.sealing import conversation, message
from bursar.sealing.certificates import (
    TrustStore,
    UntrustedCertificate,
    read_certificates,
    read_pem,
)
from bursar.sealing.conversation import Conversation
from bursar.sealing.envelope import ConversationResult, MessageResult, SealError, decode
from bursar.sealing.keys import Identity, read_identities

LIFETIME = 30 * 86_400.0
"""Seconds for which workers take a task after it was sealed, unless told otherwise; about."""

_REMEMBERED = 64
"""Conversations of which the keys are kept, for results that come one after the other."""


class TaskSealer:
    """
    Seals tasks that only the workers can open, and opens their results.

    Parameters
    ----------
    recipient
        The workers' certificate, as the service shows it or, better, as it came by another way.
    identity
        The user's own.
    trust
        The authorities that vouch for the workers.
    former
        The user's own before they were renewed: they open what comes back of what they sealed.
    level
        ``"conversation"``: one key agreement for many tasks, and a result shows that it was made
        by a holder of the workers' key; ``"message"``: one for each task and result, each signed.
    lifetime
        Seconds for which workers take a task, at the level conversation at least half of it: the
        service cannot bring it up again afterwards.
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
        A task's envelope.

        Parameters
        ----------
        about
            What the result is held against when it is opened: the instance and the task's label,
            say. Everybody can read it. Where two tasks have the same one, the service could give
            the result of one as that of the other.

        Raises
        ------
        SealError
            When it becomes too large.
        """
        now = self._clock()
        if self._level == "message":
            return message.seal_task(
                self._identity, self._recipient, payload, about, now, self._lifetime
            )
        header, keys = self._talk(now)
        self._sealed += 1
        return keys.seal_task(header, payload, about)

    def open(self, envelope: bytes, about: str) -> bytes:
        """
        What a result's envelope holds. The process that sealed the task need not be this one.

        Parameters
        ----------
        about
            What was said when the task was sealed.

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
        """With the key that it was made for, whichever that is."""
        for identity in self._identities[:-1]:
            try:
                return message.open_result(result, worker, identity, about)
            except SealError:
                continue
        return message.open_result(result, worker, self._identities[-1], about)

    def _talk(self, now: float) -> tuple[bytes, Conversation]:
        if (
            self._current is None
            or now >= self._renew_at
            or self._sealed >= conversation.MOST_TASKS
        ):
            self._current = conversation.begin_conversation(
                self._identity, self._recipient, now, self._lifetime
            )
            self._renew_at = now + self._lifetime / 2
            self._sealed = 0
        return self._current

    def _recall(self, result: ConversationResult) -> Conversation:
        # The signature belongs to what is remembered: it has to be looked at, too.
        key = result.signature + result.grant
        known = self._recalled.get(key)
        if known is None:
            known = conversation.recall_conversation(result, self._identities)
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
    A sealer with what lies in files.

    Parameters
    ----------
    recipient
        The workers' certificate, PEM.
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
