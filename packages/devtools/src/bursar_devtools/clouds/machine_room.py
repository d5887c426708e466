"""EC2 on this machine: moto's server answers, and machines are processes made of user data."""

import base64
import datetime
import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bursar.provisioning.interruptions import ADDRESS

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
    metadata
        Port of the machines' metadata service, below whose address each machine has a path.
    """

    port: int
    folder: Path
    region: str
    boot: float = 0.0
    metadata: int = 0
    notices: dict[str, float] = field(default_factory=dict)
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

    def announce_interruption(self, machine: str, seconds: float = 0.0) -> None:
        """Have a machine learn that the provider takes it back in so many seconds."""
        self.notices[machine] = time.time() + seconds

    def answer_metadata(self, method: str, path: str, token: str) -> str | None:
        """Answer a request of a machine for its metadata, as EC2 does; None: not found."""
        machine, _, rest = path.strip("/").partition("/")
        if (method, rest) == ("PUT", "latest/api/token"):
            return f"token-{machine}"
        if rest != "latest/meta-data/spot/instance-action" or token != f"token-{machine}":
            return None
        if machine not in self.notices:
            return None
        goes = datetime.datetime.fromtimestamp(self.notices[machine], datetime.UTC)
        return json.dumps({"action": "terminate", "time": goes.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def fail(self, machine: str) -> None:
        """Kill what runs on a machine, as a failure of its hardware does; moto lists it still."""
        kill_machine(self.processes[machine])

    def look(self, now: float) -> None:
        """Start processes of machines that have come, and end those of machines that are gone."""
        for one in self.machines():
            process = self.processes.get(one.id)
            if one.state in _THERE and process is None:
                if now >= self.started.setdefault(one.id, now) + self.boot:
                    self.processes[one.id] = self._start(one)
            elif process is not None and one.state not in _THERE:
                kill_machine(process)
            elif process is not None and process.poll() is not None and process.returncode >= 0:
                one.terminate()  # its script has ended, and shut the machine down

    def close(self) -> None:
        """Kill all machines."""
        for process in self.processes.values():
            kill_machine(process)

    def _start(self, one: Any) -> "subprocess.Popen[bytes]":
        address = f"http://127.0.0.1:{self.metadata}/{one.id}"
        return start_machine(self.folder, one.id, _decoded(one.user_data), address)


def install_programs(folder: Path) -> None:
    """Put stand-ins for the programs that end a machine into a folder of machines."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name in ("shutdown", "poweroff", "halt"):
        (programs / name).write_text(_SHUTDOWN)
        (programs / name).chmod(stat.S_IRWXU)


def start_machine(
    folder: Path, machine: str, user_data: bytes, metadata: str = ""
) -> "subprocess.Popen[bytes]":
    """
    Start a machine: a process of this one that runs its user data.

    Parameters
    ----------
    metadata
        Address of the machine's metadata service; empty: none that answers.
    """
    script = folder / f"{machine}.sh"
    script.touch(0o600)
    script.write_bytes(user_data)
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        ADDRESS: metadata or "http://127.0.0.1:9",
    }
    with (folder / f"{machine}.log").open("wb") as log:
        return subprocess.Popen(
            ["sh", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )


def _decoded(user_data: Any) -> bytes:
    if hasattr(user_data, "decode") and not isinstance(user_data, bytes):
        return str(user_data.decode()).encode()
    data = user_data.encode() if isinstance(user_data, str) else bytes(user_data or b"")
    return data if data.startswith(b"#!") else base64.b64decode(data)


def kill_machine(process: "subprocess.Popen[bytes]") -> None:
    """Kill all that runs on a machine."""
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
    from moto.ec2.models import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    install_programs(folder)
    server = make_server(
        "127.0.0.1",
        0,
        _with_namespace(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=Quiet,
    )
    room = MachineRoom(server.server_port, folder, region, boot)
    metadata = ThreadingHTTPServer(("127.0.0.1", 0), _metadata_of(room))
    room.metadata = metadata.server_port
    is_over = threading.Event()

    def serve_machines() -> None:
        while not is_over.wait(_LOOK):
            room.look(time.monotonic())

    threads = [
        threading.Thread(target=server.serve_forever, daemon=True),
        threading.Thread(target=serve_machines, daemon=True),
        threading.Thread(target=metadata.serve_forever, daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield room
    finally:
        is_over.set()
        server.shutdown()
        metadata.shutdown()
        metadata.server_close()
        for thread in threads:
            thread.join()
        room.close()
        ec2_backends.reset()


def _metadata_of(room: MachineRoom) -> type[BaseHTTPRequestHandler]:
    """Return the metadata service of a room's machines, in place of 169.254.169.254."""

    class MetadataHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("X-aws-ec2-metadata-token", "")
            answer = room.answer_metadata(self.command, self.path, token)
            body = (answer or "").encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return MetadataHandler


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
