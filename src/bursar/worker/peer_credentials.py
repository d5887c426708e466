"""
Check of the user whose process holds the other end of a connection within this machine.

Any user may listen on a port of this machine: while a service is down, another process can take
its port, and would receive the secrets of all workers that try to reconnect.
"""

import select
import socket
import struct
import time
from ipaddress import ip_address

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_POLL_TIMEOUT = 5  # milliseconds


def check_peer(connection: socket.socket, owner: int, patience: float) -> None:
    """
    Wait until the peer has accepted the connection, and check the user of the peer's process.

    Parameters
    ----------
    connection
        TCP connection to an address of this machine.
    owner
        User id that the peer's process must have.
    patience
        Seconds to wait.

    Raises
    ------
    OSError
        When the peer is another user's or unknown, or does not accept in time.
    """
    until = time.monotonic() + patience
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while (found := _owner_of_peer(connection)) is None:
        if time.monotonic() >= until:
            raise TimeoutError("nobody takes the connection")
        # Peeked at and left: what the dispatcher says first is for the caller.
        if poll.poll(_POLL_TIMEOUT) and not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the connection was ended")
    if found != owner:
        raise PermissionError(f"the process that listens there is of user {found}, not {owner}")


def _owner_of_peer(connection: socket.socket) -> int | None:
    """
    Return the user of the process that has accepted a connection; None: no process has.

    Raises
    ------
    OSError
        When the kernel does not say.
    """
    ours, theirs = connection.getsockname(), connection.getpeername()
    # The other end's line has the addresses the other way round, maybe as IPv6.
    wanted = {
        (_written(*theirs[:2], mapped=mapped), _written(*ours[:2], mapped=mapped))
        for mapped in (False, True)
    }
    for table in _TABLES:
        try:
            with open(table, "rb") as file:
                lines = file.read().decode("ascii").splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            # Without an inode nobody has accepted the connection: the listener's user is not known
            # yet.
            if (fields[1], fields[2]) in wanted and fields[9] != "0":
                return int(fields[7])
    return None


def _written(address: str, port: int, *, mapped: bool) -> str:
    """Format an address as the kernel's tables do: 32-bit words in the machine's byte order."""
    packed = ip_address(address).packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
