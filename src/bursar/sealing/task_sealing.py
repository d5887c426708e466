"""Both sides of sealing: users seal tasks and open results, workers the other way round."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography import x509

from bursar.model.errors import InputError
from bursar.model.site import SealLevel
from bursar.sealing import levels
from bursar.sealing.certificates import (
    Identity,
    TrustStore,
    UntrustedCertificate,
    VerifiedCertificate,
    key_name,
    public_key,
    read_certificates,
    read_identities,
    read_pem,
)
from bursar.sealing.envelope import (
    ConversationResult,
    ConversationTask,
    MessageResult,
    MessageTask,
    SealError,
    decode,
    decode_grant,
    decode_header,
    sha256_digest,
)
from bursar.sealing.levels import Conversation

# The user's side of sealing: seals tasks and opens their results.

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


# The worker's side of sealing: opens tasks and seals their results.

_CACHED_CONVERSATIONS = 256
"""Conversations whose keys are cached: opening one takes a hundred times as long as a task."""

_SLOW_CLOCK = 3600.0
"""Seconds by which this machine's clock may be behind the user's."""


@dataclass(frozen=True, slots=True)
class OpenedTask:
    """
    A task whose envelope was opened and verified.

    Parameters
    ----------
    payload
        Decrypted contents.
    user
        Name in the certificate of the user who sealed the task.
    about
        Text that the user compares with that of the result.
    seal
        Seals the result into an envelope that only that user can open.
    """

    payload: bytes
    user: str
    about: str
    seal: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class _AcceptedConversation:
    """An accepted conversation with user and validity, seconds since the epoch."""

    conversation: Conversation
    user: str
    begin: float
    end: float


class TaskOpener:
    """
    Opens tasks that users of an authority have sealed for these workers.

    Parameters
    ----------
    identities
        The workers' certificates with their keys: more than one while they are being renewed.
    trust
        The authorities that vouch for the users.
    clock
        Seconds since the epoch.
    """

    def __init__(
        self,
        identities: Sequence[Identity],
        trust: TrustStore,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identities = {key_name(public_key(each.certificate)): each for each in identities}
        self._trust = trust
        self._clock = clock
        self._known: dict[bytes, _AcceptedConversation] = {}

    def open(self, envelope: bytes) -> OpenedTask:
        """
        Open and verify a task's envelope.

        Raises
        ------
        SealError
            When it is for other workers, was altered, or is too old or too new; or its user is
            not certified by an authority, expired or revoked.
        """
        match decode(envelope):
            case ConversationTask() as task:
                known = self._accept(task.header)
                return OpenedTask(
                    payload=known.conversation.open_task(task),
                    user=known.user,
                    about=task.about,
                    seal=partial(
                        known.conversation.seal_result,
                        task=sha256_digest(envelope),
                        about=task.about,
                    ),
                )
            case MessageTask() as task:
                return self._open_message(task, sha256_digest(envelope))
            case _:
                raise SealError("it is a result, not a task")

    def _accept(self, encoded: bytes) -> _AcceptedConversation:
        now = self._clock()
        known = self._known.get(encoded)
        if known is None:
            header = decode_header(encoded)
            grant = decode_grant(header.grant)
            # Certificate, signature and key agreement are checked once for each distinct header;
            # afterwards only time can change the answer, within the life of this opener.
            worker = self._recipient(grant.recipient)
            user = self._user(header.certificate, now)
            known = _AcceptedConversation(
                conversation=levels.accept_conversation(header, user.certificate, worker),
                user=user.name,
                begin=grant.created - _SLOW_CLOCK,
                # Whichever ends first: a cached conversation must not outlive its user's
                # certificate.
                end=min(grant.expires, user.end),
            )
            # The oldest goes: users begin new conversations and leave old ones.
            if len(self._known) >= _CACHED_CONVERSATIONS:
                del self._known[next(iter(self._known))]
            self._known[encoded] = known
        _check_time(known.begin, known.end, now)
        return known

    def _open_message(self, task: MessageTask, name: bytes) -> OpenedTask:
        """Open a task that was sealed by itself; ``name`` is the digest of its envelope."""
        now = self._clock()
        worker = self._recipient(task.recipient)
        user = self._user(task.certificate, now)
        payload = levels.open_task(task, user.certificate, worker)
        _check_time(task.created - _SLOW_CLOCK, task.expires, now)

        def seal(result: bytes) -> bytes:
            return levels.seal_result(worker, user.certificate, result, name, task.about)

        return OpenedTask(payload=payload, user=user.name, about=task.about, seal=seal)

    def _recipient(self, name: bytes) -> Identity:
        try:
            return self._identities[name]
        except KeyError:
            raise SealError("the envelope is for other workers") from None

    def _user(self, der: bytes, now: float) -> VerifiedCertificate:
        try:
            return self._trust.vouch(der, "user", now)
        except UntrustedCertificate as error:
            raise SealError(f"the user: {error}") from None


class TaskOpenerFile:
    """
    A :class:`TaskOpener` read from one file, and read again when the file has changed.

    Parameters
    ----------
    path
        PEM: the workers' keys and certificates, those of the authorities, and their revocation
        lists; ``bursar certs worker`` writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._opener: TaskOpener | None = None

    def open(self, envelope: bytes) -> OpenedTask:
        """
        Open and verify a task's envelope; see :meth:`TaskOpener.open`.

        Raises
        ------
        SealError
            Also when the file is not what is expected.
        """
        try:
            status = os.stat(self._path)
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._opener is None or seen != self._seen:
                # A new opener knows no conversation, so that a user whom the new file revokes is
                # refused at once. The status was taken before the read: a file replaced in between
                # is read again next time.
                self._opener = make_opener(self._path.read_bytes())
                self._seen = seen
        except OSError as error:
            raise SealError(f"{self._path}: cannot be read: {error.strerror}") from None
        except InputError as error:
            raise SealError(f"{self._path}: {error}") from None
        return self._opener.open(envelope)


def make_opener(pem: bytes) -> TaskOpener:
    """
    Return an opener with the keys and certificates of a PEM text, in any order.

    Raises
    ------
    InputError
        When something is missing.
    """
    return TaskOpener(read_identities(pem), TrustStore.from_pem(pem))


def _check_time(begin: float, end: float, now: float) -> None:
    if not begin <= now <= end:
        raise SealError("the envelope has expired, or is not good yet by the clock here")
