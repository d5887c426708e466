"""Messages between a run and a Dask worker."""

import msgspec

from bursar.dispatch.wire import WireJob
from bursar.model.task import Outcome
from bursar.sites.dask.file_payloads import FilePayload


class SharedRunPaths(msgspec.Struct, frozen=True, array_like=True):
    """
    Paths of the run's files, for workers on the same file system.

    Parameters
    ----------
    root, files, work, logs
        See :class:`bursar.dispatch.wire.Welcome`.
    """

    root: str
    files: str
    work: str
    logs: str


class DaskJobOrder(msgspec.Struct, frozen=True, array_like=True):
    """
    Jobs for one thread of a Dask worker, to be run after earlier orders.

    Parameters
    ----------
    run
        Identity of the run among all that use the Dask cluster.
    mark
        Mark by which the dispatcher's machine recognises the run's processes.
    whom
        Identity of the process that the order is for; another one refuses it.
    spill
        Bytes of a stream that travel with an outcome; the rest stays in a file.
    patience
        Seconds without a heartbeat after which the run counts as gone.
    sidecar
        Sidecar that still has jobs of earlier orders; empty: none.
    jobs
        Jobs in the order in which they run; empty: the sidecar goes on with those it has.
    place
        Paths of the run's files on a shared file system; None: files travel with the jobs.
    payloads
        For each job, the files that it reads; empty where files are shared.
    """

    run: str
    mark: str
    whom: str
    spill: int
    patience: float
    sidecar: str
    jobs: list[WireJob]
    place: SharedRunPaths | None
    payloads: list[list[FilePayload]]


class DaskJobResult(msgspec.Struct, frozen=True, array_like=True):
    """
    Outcome of one job, with the job's files.

    Parameters
    ----------
    made
        Files that the job made for the run; empty where files are shared.
    logs
        Streams too long for the outcome, by file name; empty where files are shared.
    """

    outcome: Outcome
    made: list[FilePayload] = []
    logs: list[FilePayload] = []


class DaskReply(msgspec.Struct, frozen=True, array_like=True):
    """
    Reply to an order: what has become of jobs so far.

    Parameters
    ----------
    done
        Jobs that have ended.
    returned
        Task and attempt of jobs that have not begun; the sidecar has given them up.
    sidecar
        Sidecar that still has jobs, for a later order to ask; empty: none.
    is_other
        Whether the order was meant for another process; nothing was done then.
    """

    done: list[DaskJobResult] = []
    returned: list[tuple[int, int]] = []
    sidecar: str = ""
    is_other: bool = False


_encode = msgspec.msgpack.Encoder().encode
_order = msgspec.msgpack.Decoder(DaskJobOrder)
_answer = msgspec.msgpack.Decoder(DaskReply)


def encode_order(order: DaskJobOrder) -> bytes:
    """Encode an order for the wire."""
    return _encode(order)


def decode_order(data: bytes) -> DaskJobOrder:
    """Decode the bytes of :func:`encode_order`."""
    return _order.decode(data)


def encode_answer(answer: DaskReply) -> bytes:
    """Encode a reply for the wire."""
    return _encode(answer)


def decode_answer(data: bytes) -> DaskReply:
    """Decode the bytes of :func:`encode_answer`."""
    return _answer.decode(data)
