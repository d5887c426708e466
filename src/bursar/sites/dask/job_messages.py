"""What travels to a Dask worker, and what comes back."""

import msgspec

from bursar.dispatch.wire import WireJob
from bursar.model.outcome import Outcome
from bursar.sites.dask.file_payloads import FilePayload


class SharedRunPaths(msgspec.Struct, frozen=True, array_like=True):
    """
    Where the run's files lie, for workers that see them.

    Parameters
    ----------
    root, files, work, logs
        As of :class:`bursar.dispatch.wire.Welcome`.
    """

    root: str
    files: str
    work: str
    logs: str


class DaskJobOrder(msgspec.Struct, frozen=True, array_like=True):
    """
    Jobs for one thread of a Dask worker, after those that it was given before.

    Parameters
    ----------
    run
        Identity of the run among all that use the Dask cluster.
    mark
        What its processes bear, by which the dispatcher's machine knows them.
    whom
        The process that it is for; another one refuses it.
    spill
        Bytes of a stream that travel with an outcome; more lies in a file.
    patience
        Seconds after which a run that is not heard of any more is taken to be gone.
    bench
        Where jobs of orders before this one are still in hand; empty: nowhere.
    jobs
        In this order, one after the other; none: it goes on with those in hand.
    place
        None: the run's files are not seen there, and travel.
    parcels
        Of each job, the files that it reads; empty where they are seen.
    """

    run: str
    mark: str
    whom: str
    spill: int
    patience: float
    bench: str
    jobs: list[WireJob]
    place: SharedRunPaths | None
    parcels: list[list[FilePayload]]


class DaskJobResult(msgspec.Struct, frozen=True, array_like=True):
    """
    What became of one job.

    Parameters
    ----------
    made
        Files that it made for the run; empty where they lie there already.
    logs
        Streams too long for the outcome, under the names of their files; likewise.
    """

    outcome: Outcome
    made: list[FilePayload] = []
    logs: list[FilePayload] = []


class DaskReply(msgspec.Struct, frozen=True, array_like=True):
    """
    What has become of jobs so far.

    Parameters
    ----------
    done
        Jobs that have ended.
    returned
        Task and attempt of those that have not begun: they are out of its hands.
    bench
        Where jobs are still in hand, to be asked about by a next order; empty: nowhere.
    is_other
        The order is none for this process, which has done nothing.
    """

    done: list[DaskJobResult] = []
    returned: list[tuple[int, int]] = []
    bench: str = ""
    is_other: bool = False


_encode = msgspec.msgpack.Encoder().encode
_order = msgspec.msgpack.Decoder(DaskJobOrder)
_answer = msgspec.msgpack.Decoder(DaskReply)


def encode_order(order: DaskJobOrder) -> bytes:
    """As it travels."""
    return _encode(order)


def decode_order(data: bytes) -> DaskJobOrder:
    """What :func:`encode_order` made."""
    return _order.decode(data)


def encode_answer(answer: DaskReply) -> bytes:
    """As it travels."""
    return _encode(answer)


def decode_answer(data: bytes) -> DaskReply:
    """What :func:`encode_answer` made."""
    return _answer.decode(data)
