"""How much and how fast anybody may ask: the settings."""

import msgspec

MOST_WAIT = 60.0
"""Seconds for which a request may ask to be held back."""

MiB = 1 << 20


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the service puts up with.

    Parameters
    ----------
    json_bytes, submission_bytes, file_bytes, archive_bytes
        Of one request's body: of most; of tasks; of a file; of an archive as it is sent.
    unpacked_bytes, members, ratio
        Of an archive: all its files together, how many there are, and how often larger they are
        than the archive (small archives may be as large as they like).
    instance_bytes
        Of all files that a client may put into one instance.
    user_bytes
        Of all that a user's instances keep on disk, together: files, what tasks work on and what
        they printed. Past it the user puts nothing there any more; what tasks write goes on.
    spare_bytes
        Of the disk, that uploads leave free. The journal, and with it every task and result, needs
        64 MiB; twice as much is the least that makes sense here.
    buffered_bytes
        Of all bodies that are being read into memory, together; of one user's, half of it.
    answered_bytes
        Of all answers with results that wait in memory to be taken, together; of one user's, half
        of it, or a single one.
    header_bytes
        Bytes of a request's line and headers.
    header_seconds
        In which these must have come.
    body_rate
        Bytes per second that a body must come with, on average over ``body_seconds``.
    body_seconds
        After which the rate is looked at, again and again.
    idle_seconds
        After which a connection without a request ends.
    send_seconds
        In which a client must have read something of what is sent to it.
    connections, connections_per_address
        At a time.
    rate, burst
        Requests per second of one user, and how many at once.
    stranger_rate, stranger_burst
        Requests per second of one address that need no identity, and how many at once.
    failure_rate, failure_burst
        Attempts per second of one address to be somebody that it is not, and how many at once.
    requests, streams
        That a user may have under way at a time: all of them; those that stay open.
    stream_seconds
        After which a stream ends, to be taken up again.
    heartbeat
        Seconds after which a stream says that it is still there.
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
    stranger_rate: float = 50.0
    stranger_burst: float = 200.0
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
