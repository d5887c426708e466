"""Digests of submitted content, which show that a key was used for other content before."""

from collections.abc import Callable, Iterable
from hashlib import sha256

import msgspec

from bursar.remote import messages as api
from bursar.service.interfaces import ServiceError

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def hash_tasks(tasks: Iterable[api.TaskSpec], update: Callable[[bytes], None]) -> None:
    """
    Feed tasks to a hash, so that equal tasks in equal order give equal digests.

    How the client wrote them (spaces, order of fields, one document or one a line) changes
    nothing. Envelopes of sealed tasks count by their presence only: the same task sealed once
    more is another envelope.
    """
    for task in tasks:
        if task.sealed:
            task = msgspec.structs.replace(task, sealed="sealed")
        update(_encode(task))


def digest_of_instance(new: api.NewInstance) -> bytes:
    """Return the SHA-256 digest of what a client asks of a new instance."""
    return sha256(_encode(new)).digest()


def check_content(before: bytes, now: bytes) -> None:
    """
    Compare the digest of a request with the digest of the first request under the same key.

    Parameters
    ----------
    before
        Empty for what an earlier version of the service took, which kept no digest: then any
        content passes.

    Raises
    ------
    ServiceError
        422, when the content is another.
    """
    if before and before != now:
        raise ServiceError(
            "key-reused",
            422,
            f"the key came with other content before: SHA-256 {before.hex()} then, {now.hex()} now",
            where="Idempotency-Key",
        )
