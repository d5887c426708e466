"""Tells systemd how the service stands (sd_notify(3)): a datagram to the socket that it names."""

import os
import socket
from collections.abc import Mapping


class SystemdNotifier:
    """
    Who started the service and wants to hear of it; nobody, where no socket is named.

    Parameters
    ----------
    environment
        Of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        usec = environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(usec) / 1e6 if usec.isdecimal() and meant else None

    @property
    def every(self) -> float | None:
        """Seconds between two signs of life that it wants; None: it wants none."""
        return None if not self._address or not self._watchdog else self._watchdog / 2

    def ready(self, status: str) -> None:
        """The service takes work."""
        self._tell(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """It reads its files again; :meth:`ready` is told when it has."""
        self._tell("RELOADING=1")

    def stopping(self) -> None:
        """It is on its way out."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """Its loop goes round."""
        self._tell("WATCHDOG=1")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.connect(self._address)
                channel.send(message.encode())
            except OSError:
                return  # it does not listen; that is no reason to end
