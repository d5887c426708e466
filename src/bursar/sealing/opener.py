"""The worker's side of sealing: opens tasks and seals their results."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bursar.model.errors import InputError
from bursar.sealing import levels
from bursar.sealing.certificates import (
    Identity,
    TrustStore,
    UntrustedCertificate,
    VerifiedCertificate,
    key_name,
    public_key,
    read_identities,
)
from bursar.sealing.envelope import (
    ConversationTask,
    MessageTask,
    SealError,
    decode,
    decode_grant,
    decode_header,
    sha256_digest,
)
from bursar.sealing.levels import Conversation

_REMEMBERED = 256
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
            if len(self._known) >= _REMEMBERED:
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
