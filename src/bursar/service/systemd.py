"""Notifications to systemd: datagrams to the socket that the environment names (sd_notify(3))."""

import os
import socket
from collections.abc import Mapping


class SystemdNotifier:
    """
    Sends the service's state to systemd; does nothing where no socket is named.

    Parameters
    ----------
    environment
        Environment variables; None: those of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        name = environment.get("NOTIFY_SOCKET", "")
        # A leading "@" stands for the NUL byte of an abstract socket (sd_notify(3)).
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        usec = environment.get("WATCHDOG_USEC", "")
        # A child process inherits the variables, but is not the one that systemd watches.
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(usec) / 1e6 if usec.isdecimal() and meant else None

    @property
    def every(self) -> float | None:
        """Seconds between two watchdog signals; None: systemd wants none."""
        return None if not self._address or not self._watchdog else self._watchdog / 2

    def ready(self, status: str) -> None:
        """Report that the service accepts requests."""
        self._notify(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being read again; :meth:`ready` follows."""
        self._notify("RELOADING=1")

    def stopping(self) -> None:
        """Report that the service stops."""
        self._notify("STOPPING=1")

    def alive(self) -> None:
        """Send a watchdog signal: the event loop is running."""
        self._notify("WATCHDOG=1")

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.connect(self._address)
                channel.send(message.encode())
            except OSError:
                return  # it does not listen; that is no reason to end
