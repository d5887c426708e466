"""What systemd is told."""

import socket
from pathlib import Path

from bursar.service.runner import SystemdNotifier


def test_it_is_told_by_datagrams(tmp_path: Path) -> None:
    """As sd_notify(3) says; how often it wants to hear is half of its patience."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(10)
        supervisor = SystemdNotifier({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "4000000"})
        supervisor.ready("listening")
        supervisor.reloading()
        supervisor.alive()
        supervisor.stopping()
        said = [channel.recv(100) for _ in range(4)]

    assert said == [b"READY=1\nSTATUS=listening", b"RELOADING=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert supervisor.every == 2.0


def test_nobody_is_told_where_nobody_asks(tmp_path: Path) -> None:
    """Without a socket, or with one that is not there, or whose watchdog is another's."""
    for environment in (
        {},
        {"NOTIFY_SOCKET": str(tmp_path / "nobody")},
        {"NOTIFY_SOCKET": str(tmp_path / "x"), "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"},
    ):
        supervisor = SystemdNotifier(environment)
        supervisor.ready("listening")
        assert supervisor.every is None
