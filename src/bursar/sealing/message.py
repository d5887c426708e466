"""
The level *message*: each task and each result is encrypted and signed by itself.

Each is encrypted to the recipient's key with a key agreement of its own (HPKE, RFC 9180) and signed
by the sender. The ciphertext is bound to the sender's certificate, so that nobody can replace the
signature with their own and receive the answer.
"""

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bursar.sealing.envelope import MessageResult, MessageTask, encode, encode_part, sha256_digest
from bursar.sealing.keys import Identity, encrypt_to_key, key_name, public_key, verify

_TASK = "bursar sealing 1: task by itself"
_RESULT = "bursar sealing 1: result by itself"
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
    return encode_part((_TASK, sha256_digest(certificate), recipient, created, expires, about))


def _result_info(certificate: bytes, user: bytes, task: bytes, about: str) -> bytes:
    return encode_part((_RESULT, sha256_digest(certificate), user, task, about))
