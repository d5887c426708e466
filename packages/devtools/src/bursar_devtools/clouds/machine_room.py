"""EC2 on this machine: moto's server answers, and machines are processes made of user data."""

import base64
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMAGE = "ami-12c6146b"
"""An image that moto knows."""

_LOOK = 0.1  # seconds between two looks at moto's machines
_SPACE = b"http://ec2.amazonaws.com/doc/2016-11-15"
_THERE = ("pending", "running")

_SHUTDOWN = """\
#!/bin/sh
# The room ends the machine when the script that started it has ended.
exit 0
"""

_CURL = """\
#!/bin/sh
# In place of the provider's metadata: a notice of interruption is a file.
[ -e "$BURSAR_NOTICE" ]
"""


@dataclass
class MachineRoom:
    """
    A cloud of local processes behind moto's EC2 API; see :func:`machine_room`.

    Parameters
    ----------
    port
        Port of the API on 127.0.0.1.
    folder
        Folder for the files of machines.
    region
        Region in which machines are made.
    boot
        Seconds from a purchase until the machine runs its script.
    """

    port: int
    folder: Path
    region: str
    boot: float = 0.0
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def machines(self) -> list[Any]:
        """Return moto's machines, ended ones included."""
        from moto.ec2.models import ec2_backends

        backend = ec2_backends["123456789012"][self.region]
        return [one for group in list(backend.reservations.values()) for one in group.instances]

    @property
    def left(self) -> list[str]:
        """Machines that have not ended, by their identity."""
        return [one.id for one in self.machines() if one.state in _THERE]

    def announce_interruption(self, machine: str) -> None:
        """Have a machine learn that the provider is about to take it back."""
        (self.folder / f"{machine}.notice").touch()

    def fail(self, machine: str) -> None:
        """Kill what runs on a machine, as a failure of its hardware does; moto lists it still."""
        _kill(self.processes[machine])

    def look(self, now: float) -> None:
        """Start processes of machines that have come, and end those of machines that are gone."""
        for one in self.machines():
            process = self.processes.get(one.id)
            if one.state in _THERE and process is None:
                if now >= self.started.setdefault(one.id, now) + self.boot:
                    self.processes[one.id] = self._start(one)
            elif process is not None and one.state not in _THERE:
                _kill(process)
            elif process is not None and process.poll() is not None and process.returncode >= 0:
                one.terminate()  # its script has ended, and shut the machine down

    def close(self) -> None:
        """Kill all machines."""
        for process in self.processes.values():
            _kill(process)

    def _start(self, one: Any) -> "subprocess.Popen[bytes]":
        script = self.folder / f"{one.id}.sh"
        script.touch(0o600)
        script.write_bytes(_decoded(one.user_data))
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "BURSAR_NOTICE": str(self.folder / f"{one.id}.notice"),
        }
        with (self.folder / f"{one.id}.log").open("wb") as log:
            return subprocess.Popen(
                ["sh", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )


def _decoded(user_data: Any) -> bytes:
    if hasattr(user_data, "decode") and not isinstance(user_data, bytes):
        return str(user_data.decode()).encode()
    data = user_data.encode() if isinstance(user_data, str) else bytes(user_data or b"")
    return data if data.startswith(b"#!") else base64.b64decode(data)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # The whole session: pilots, workers and what they run are of one machine.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@contextmanager
def machine_room(
    folder: Path, *, region: str = "eu-central-1", boot: float = 0.0
) -> Iterator[MachineRoom]:
    """
    Serve EC2's API on this machine for as long as the context lasts.

    Needs the package ``moto[ec2,server]``. Machines that are left at the end are killed.
    """
    import time

    from moto.ec2.models import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("shutdown", _SHUTDOWN),
        ("poweroff", _SHUTDOWN),
        ("halt", _SHUTDOWN),
        ("curl", _CURL),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    server = make_server(
        "127.0.0.1",
        0,
        _with_namespace(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=Quiet,
    )
    room = MachineRoom(server.server_port, folder, region, boot)
    is_over = threading.Event()

    def serve_machines() -> None:
        while not is_over.wait(_LOOK):
            room.look(time.monotonic())

    threads = [
        threading.Thread(target=server.serve_forever, daemon=True),
        threading.Thread(target=serve_machines, daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield room
    finally:
        is_over.set()
        server.shutdown()
        for thread in threads:
            thread.join()
        room.close()
        ec2_backends.reset()


def _with_namespace(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """
    Return an application whose XML has the namespaces that EC2's has.

    The slash at the end is missing in moto's, and its errors have one where EC2's have none.
    """

    def serve(environ: Any, start: Callable[..., Any]) -> Iterable[bytes]:
        answer: list[Any] = []
        parts = application(environ, lambda status, headers, *_: answer.append((status, headers)))
        body = b"".join(parts)
        if b"<Errors>" in body:
            body = body.replace(b' xmlns="' + _SPACE + b'"', b"")
        body = body.replace(_SPACE + b'"', _SPACE + b'/"')
        status, headers = answer[0]
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]

    return serve
