"""
The levels of sealing: *message* and *conversation*.

Each is encrypted to the recipient's key with a key agreement of its own (HPKE, RFC 9180) and signed
by the sender. The ciphertext is bound to the sender's certificate, so that nobody can replace the
signature with their own and receive the answer.

The user draws the secret, locks it to the workers' key and signs that (a grant). All keys follow
from it by HKDF (RFC 5869), one for tasks, and one for the results of each task; all is encrypted
by AES-256-GCM (NIST SP 800-38D) with random nonces, bound to the conversation, the direction and
what it is about. So nothing can be altered, moved to another place, or sent back where it came
from. The maker of a result had the secret: a holder of the workers' key, or the user.
"""

import os
from collections.abc import Sequence

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding

from bursar.sealing.certificates import (
    Identity,
    encrypt_to_key,
    key_name,
    public_key,
    tampered_error,
    verify,
)
from bursar.sealing.envelope import (
    ConversationGrant,
    ConversationHeader,
    ConversationResult,
    ConversationTask,
    MessageResult,
    MessageTask,
    SealError,
    decode_grant,
    encode,
    encode_part,
    sha256_digest,
)

# The level *message*: each task and each result is encrypted and signed by itself.

_TASK_ALONE = "bursar sealing 1: task by itself"
_RESULT_ALONE = "bursar sealing 1: result by itself"
_SIGNED_TASK = b"bursar sealing 1: signed task\n"
_SIGNED_RESULT = b"bursar sealing 1: signed result\n"


def seal_task(
    identity: Identity,
    recipient: x509.Certificate,
    payload: bytes,
    about: str,
    now: float,
    lifetime: float,
) -> bytes:
    """
    Return a task's envelope.

    Parameters
    ----------
    recipient
        Certificate of the workers; checked by the caller.
    now, lifetime
        Start, seconds since the epoch, and duration, seconds, in which workers accept the task.
    """
    certificate = identity.certificate.public_bytes(Encoding.DER)
    name = key_name(public_key(recipient))
    created, expires = int(now), int(now + lifetime)
    info = _task_info(certificate, name, created, expires, about)
    # Encrypted, then signed with what the ciphertext is bound to: a foreign signature on a copied
    # ciphertext does not decrypt.
    box = encrypt_to_key(payload, public_key(recipient), info)
    signature = identity.sign(_SIGNED_TASK, encode_part((info, box)))
    return encode(MessageTask(certificate, name, created, expires, about, box, signature))


def open_task(task: MessageTask, certificate: x509.Certificate, worker: Identity) -> bytes:
    """
    Verify and decrypt a task's envelope.

    Parameters
    ----------
    certificate
        The user's certificate from the envelope; checked by the caller.

    Raises
    ------
    SealError
        When the user did not make it, or not for this worker.
    """
    info = _task_info(task.certificate, task.recipient, task.created, task.expires, task.about)
    signed = encode_part((info, task.box))
    verify(public_key(certificate), task.signature, _SIGNED_TASK, signed)
    return worker.unlock(task.box, info)


def seal_result(
    worker: Identity, user: x509.Certificate, payload: bytes, task: bytes, about: str
) -> bytes:
    """Return a result's envelope; ``task`` is the digest of the task's envelope."""
    certificate = worker.certificate.public_bytes(Encoding.DER)
    info = _result_info(certificate, key_name(public_key(user)), task, about)
    box = encrypt_to_key(payload, public_key(user), info)
    signature = worker.sign(_SIGNED_RESULT, encode_part((info, box)))
    return encode(MessageResult(certificate, task, box, signature))


def open_result(
    result: MessageResult, certificate: x509.Certificate, user: Identity, about: str
) -> bytes:
    """
    Verify and decrypt a result's envelope.

    Parameters
    ----------
    certificate
        The worker's certificate from the envelope; checked by the caller.
    user
        Certificate and key for which the result was sealed.
    about
        Text with which the task was sealed.

    Raises
    ------
    SealError
        When the worker did not make it, not for this user, or about something else.
    """
    info = _result_info(
        result.certificate, key_name(public_key(user.certificate)), result.task, about
    )
    signed = encode_part((info, result.box))
    verify(public_key(certificate), result.signature, _SIGNED_RESULT, signed)
    return user.unlock(result.box, info)


def _task_info(
    certificate: bytes, recipient: bytes, created: int, expires: int, about: str
) -> bytes:
    return encode_part(
        (_TASK_ALONE, sha256_digest(certificate), recipient, created, expires, about)
    )


def _result_info(certificate: bytes, user: bytes, task: bytes, about: str) -> bytes:
    return encode_part((_RESULT_ALONE, sha256_digest(certificate), user, task, about))


# The level *conversation*: one secret for many tasks and their results.

MOST_TASKS = 1 << 32
"""Tasks of one conversation, at most: the limit of a key with random nonces (SP 800-38D, 8.3)."""

_GRANT = b"bursar sealing 1: grant\n"
_WRAPPED = "bursar sealing 1: secret for the workers"
_KEPT = "bursar sealing 1: secret for the user"
_TASK = "bursar sealing 1: task"
_RESULT = "bursar sealing 1: result"
_NONCE = 12


class Conversation:
    """
    The keys of a conversation, which both ends have.

    Parameters
    ----------
    secret
        32 random bytes from which all keys are derived.
    grant, signature
        The encoded grant that opened the conversation, and the user's signature of it.
    """

    def __init__(self, secret: bytes, grant: bytes, signature: bytes) -> None:
        self._grant = grant
        self._signature = signature
        self._name = sha256_digest(grant)
        self._task_key = AESGCM(_derive(secret, self._name, _TASK))
        self._result_secret = _derive(secret, self._name, _RESULT)

    def seal_task(self, header: bytes, payload: bytes, about: str) -> bytes:
        """Return a task's envelope."""
        nonce = os.urandom(_NONCE)
        box = self._task_key.encrypt(nonce, payload, self._bound(_TASK, about))
        return encode(ConversationTask(header, about, nonce, box))

    def open_task(self, task: ConversationTask) -> bytes:
        """
        Decrypt a task's envelope.

        Raises
        ------
        SealError
            When it was altered.
        """
        return _decrypt(self._task_key, task.nonce, task.box, self._bound(_TASK, task.about))

    def seal_result(self, payload: bytes, task: bytes, about: str) -> bytes:
        """Return a result's envelope; ``task`` is the digest of the task's envelope."""
        nonce = os.urandom(_NONCE)
        box = self._key_of(task).encrypt(nonce, payload, self._bound(_RESULT, about, task))
        return encode(ConversationResult(self._grant, self._signature, task, nonce, box))

    def open_result(self, result: ConversationResult, about: str) -> bytes:
        """
        Decrypt a result's envelope.

        Raises
        ------
        SealError
            When it was altered, or is about something else.
        """
        bound = self._bound(_RESULT, about, result.task)
        return _decrypt(self._key_of(result.task), result.nonce, result.box, bound)

    def _key_of(self, task: bytes) -> AESGCM:
        # A key for each task: it is used as often as the task is tried, so that nobody need count
        # nonces over all workers.
        info = encode_part((_RESULT, task))
        return AESGCM(HKDFExpand(hashes.SHA256(), 32, info).derive(self._result_secret))

    def _bound(self, direction: str, about: str, task: bytes = b"") -> bytes:
        return encode_part((direction, self._name, about, task))


def begin_conversation(
    identity: Identity, recipient: x509.Certificate, now: float, lifetime: float
) -> tuple[bytes, Conversation]:
    """
    Open a conversation with workers; return the encoded header and the keys.

    Parameters
    ----------
    recipient
        Certificate of the workers; checked by the caller.
    now, lifetime
        Start, seconds since the epoch, and duration, seconds, in which workers accept its tasks.
    """
    secret = os.urandom(32)
    certificate = identity.certificate.public_bytes(Encoding.DER)
    # The secrets are bound to the other fields of the grant, which therefore are fixed first.
    bare = ConversationGrant(
        session=os.urandom(16),
        created=int(now),
        expires=int(now + lifetime),
        user=sha256_digest(certificate),
        recipient=key_name(public_key(recipient)),
        wrapped=b"",
        kept=b"",
    )
    grant = encode_part(
        msgspec.structs.replace(
            bare,
            wrapped=encrypt_to_key(secret, public_key(recipient), _info(_WRAPPED, bare)),
            kept=encrypt_to_key(secret, public_key(identity.certificate), _info(_KEPT, bare)),
        )
    )
    signature = identity.sign(_GRANT, grant)
    header = encode_part(ConversationHeader(certificate, grant, signature))
    return header, Conversation(secret, grant, signature)


def accept_conversation(
    header: ConversationHeader, certificate: x509.Certificate, worker: Identity
) -> Conversation:
    """
    Return the conversation that a user has opened with a worker.

    Parameters
    ----------
    certificate
        The user's certificate from the header; checked by the caller.

    Raises
    ------
    SealError
        When the user did not open it, or not with this worker.
    """
    verify(public_key(certificate), header.signature, _GRANT, header.grant)
    grant = decode_grant(header.grant)
    # Another user could sign a copied grant with their own certificate and have its tasks run under
    # their name; the grant says whose it is.
    if grant.user != sha256_digest(header.certificate):
        raise tampered_error()
    secret = worker.unlock(grant.wrapped, _info(_WRAPPED, grant))
    return Conversation(_whole(secret), header.grant, header.signature)


def recall_conversation(result: ConversationResult, users: Sequence[Identity]) -> Conversation:
    """
    Return the conversation of a result, for the user who opened the conversation.

    Parameters
    ----------
    users
        Identities of the user, one of which has opened the conversation.

    Raises
    ------
    SealError
        When none of them did.
    """
    grant = decode_grant(result.grant)
    for user in users:
        if sha256_digest(user.certificate.public_bytes(Encoding.DER)) == grant.user:
            break
    else:
        raise tampered_error()
    verify(public_key(user.certificate), result.signature, _GRANT, result.grant)
    # From the copy that the user sealed to their own key: the process that drew the secret may be
    # gone.
    secret = user.unlock(grant.kept, _info(_KEPT, grant))
    return Conversation(_whole(secret), result.grant, result.signature)


def _info(purpose: str, grant: ConversationGrant) -> bytes:
    """Return the data that bind a secret to a grant, so that no other grant can use the secret."""
    return encode_part(
        (purpose, grant.session, grant.created, grant.expires, grant.user, grant.recipient)
    )


def _whole(secret: bytes) -> bytes:
    if len(secret) != 32:
        raise SealError("it is no envelope")
    return secret


def _derive(secret: bytes, name: bytes, purpose: str) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=name, info=purpose.encode()).derive(secret)


def _decrypt(key: AESGCM, nonce: bytes, box: bytes, bound: bytes) -> bytes:
    # The cipher takes other lengths too, which nobody seals with.
    if len(nonce) != _NONCE:
        raise tampered_error()
    try:
        return key.decrypt(nonce, box, bound)
    except InvalidTag:
        raise tampered_error() from None
