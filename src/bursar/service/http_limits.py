"""Settings of the HTTP interface: sizes, rates, timeouts and numbers of connections."""

import msgspec

MOST_WAIT = 60.0
"""Seconds for which a request may ask to be held back."""

MiB = 1 << 20


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Limits that the service sets its clients.

    Parameters
    ----------
    json_bytes, submission_bytes, file_bytes, archive_bytes
        Bytes of one request's body: in general; of a submission; of a file; of a packed archive.
    unpacked_bytes, members, ratio
        Limits of an archive: bytes of all unpacked files, their number, and the ratio of unpacked
        to packed bytes (not applied to small archives).
    instance_bytes
        Bytes of all files that a client may put into one instance.
    user_bytes
        Bytes of all that a user's instances keep on disk: files, working directories and output of
        tasks. Beyond it the user's uploads are refused; tasks may go on writing.
    spare_bytes
        Bytes of the disk that uploads leave free. The journal, and with it every task and result,
        needs 64 MiB; twice as much is the least that makes sense here.
    buffered_bytes
        Bytes of all request bodies that are being read into memory; half of them for one user.
    answered_bytes
        Bytes of all replies with results that wait in memory to be read; half of them, or a single
        reply, for one user.
    header_bytes
        Bytes of a request's line and headers.
    header_seconds
        Seconds within which these must have arrived.
    body_rate
        Bytes per second at which a body must arrive, on average over ``body_seconds``.
    body_seconds
        Seconds between two checks of the rate.
    idle_seconds
        Seconds after which a connection without a request is closed.
    send_seconds
        Seconds within which a client must read some of what is sent to it.
    connections, connections_per_address
        Connections at a time, in all and from one subnet.
    rate, burst
        Requests per second of one user, and requests at once.
    unauthenticated_rate, unauthenticated_burst
        Unauthenticated requests per second of one address, and at once.
    failure_rate, failure_burst
        Failed authentications per second of one address, and at once.
    requests, streams
        Requests that a user may have under way at a time; those of them that are streams.
    stream_seconds
        Seconds after which a stream ends; the client then opens another one.
    heartbeat
        Seconds after which a silent stream sends a heartbeat.
    """

    json_bytes: int = MiB
    submission_bytes: int = 32 * MiB
    file_bytes: int = 4096 * MiB
    archive_bytes: int = 1024 * MiB
    unpacked_bytes: int = 8192 * MiB
    members: int = 100_000
    ratio: int = 100
    instance_bytes: int = 16_384 * MiB
    user_bytes: int = 65_536 * MiB
    spare_bytes: int = 256 * MiB
    buffered_bytes: int = 256 * MiB
    answered_bytes: int = 256 * MiB
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    body_rate: float = 1024.0
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    send_seconds: float = 60.0
    connections: int = 4096
    connections_per_address: int = 2048
    rate: float = 1000.0
    burst: float = 2000.0
    unauthenticated_rate: float = 50.0
    unauthenticated_burst: float = 200.0
    failure_rate: float = 0.5
    failure_burst: float = 20.0
    requests: int = 256
    streams: int = 64
    stream_seconds: float = 600.0
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
