"""
Whose process holds the other end of a connection within this machine.

Who listens on a port of this machine may be anybody: while a service is away, others can take its
port, and would be shown the secrets of all workers that look for it.
"""

import select
import socket
import struct
import time
from ipaddress import ip_address

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MOMENT = 5  # milliseconds


def check_peer(connection: socket.socket, owner: int, patience: float) -> None:
    """
    Waits until the other end is accepted, and sees whose it is.

    Parameters
    ----------
    connection
        TCP, to an address of this machine.
    owner
        User whose process it must be.
    patience
        Seconds to wait.

    Raises
    ------
    OSError
        When it is another user's, cannot be known, or is not accepted in time.
    """
    until = time.monotonic() + patience
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while (found := _owner_of_peer(connection)) is None:
        if time.monotonic() >= until:
            raise TimeoutError("nobody takes the connection")
        if poll.poll(_MOMENT) and not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the connection was ended")
    if found != owner:
        raise PermissionError(f"the process that listens there is of user {found}, not {owner}")


def _owner_of_peer(connection: socket.socket) -> int | None:
    """
    User of the process that has accepted a connection; None: none has.

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
            if (fields[1], fields[2]) in wanted and fields[9] != "0":
                return int(fields[7])
    return None


def _written(address: str, port: int, *, mapped: bool) -> str:
    """As the kernel's tables have it: words of 32 bits in the machine's order."""
    packed = ip_address(address).packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
