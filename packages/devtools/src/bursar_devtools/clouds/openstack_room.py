"""OpenStack on this machine: Keystone and Nova as libcloud asks them; machines are processes."""

import base64
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from bursar_devtools.clouds.machine_room import install_programs, kill_machine, start_machine

USER, PASSWORD, PROJECT = "demo", "hunter2hunter2", "campaigns"
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
FLAVORS = {"1": ("m1.small", 1), "2": ("m1.medium", 2)}
"""Identity of each flavour, its name and its processors."""

_SERVICES = ("compute", "image", "network", "volumev2", "volumev3", "volume")


class OpenStackError(Exception):
    """An answer that is no success, as Nova and Keystone write it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {kind: {"code": status, "message": message}}


@dataclass
class OpenStackRoom:
    """
    A cloud of local processes behind Keystone's and Nova's API; see :func:`openstack_room`.

    Parameters
    ----------
    port
        Port of the API on 127.0.0.1.
    folder
        Folder for the files of machines.
    quota
        Most machines that the project may have.
    """

    folder: Path
    port: int = 0
    quota: int = 10
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    count: int = 0
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        """Address of the identity service."""
        return f"http://127.0.0.1:{self.port}"

    def answer(
        self, method: str, path: str, body: Any, token: str
    ) -> tuple[int, dict[str, str], Any]:
        """Answer a request: status, headers and content."""
        if (method, path) == ("POST", "/v3/auth/tokens"):
            return self._authenticate(body)
        if token != self.token:
            raise OpenStackError(401, "unauthorized", "The request requires authentication.")
        where = path.removeprefix("/compute/v2.1").strip("/").split("/")
        match (method, *where):
            case ("GET", "flavors", "detail"):
                return 200, {}, {"flavors": [self._flavor(id) for id in FLAVORS]}
            case ("GET", "servers", "detail"):
                return 200, {}, {"servers": [self._seen(id) for id in self.servers]}
            case ("POST", "servers"):
                id = self._create(body["server"])
                return 202, {}, {"server": {"id": id, "links": [], "adminPass": "x"}}
            case ("GET", "servers", id):
                self._find(id)
                return 200, {}, {"server": self._seen(id)}
            case ("DELETE", "servers", id):
                self._find(id)
                del self.servers[id]
                kill_machine(self.processes[id])
                return 204, {}, None
        raise OpenStackError(404, "itemNotFound", f"{method} {path} could not be found.")

    def close(self) -> None:
        """Kill all machines."""
        for process in self.processes.values():
            kill_machine(process)

    def _authenticate(self, body: Any) -> tuple[int, dict[str, str], Any]:
        user = body["auth"]["identity"]["password"]["user"]
        project = body["auth"]["scope"]["project"]["name"]
        if (user["name"], user["password"], project) != (USER, PASSWORD, PROJECT):
            raise OpenStackError(401, "error", "The request you have made requires authentication.")
        catalog = [
            {
                "type": service,
                "name": "nova" if service == "compute" else service,
                "id": service,
                "endpoints": [
                    {
                        "id": service,
                        "interface": "public",
                        "region": "RegionOne",
                        "region_id": "RegionOne",
                        "url": f"{self.address}/{service}/v2.1",
                    }
                ],
            }
            for service in _SERVICES
        ]
        told = {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": _moment(time.time()),
            "user": {"id": "u", "name": USER, "domain": {"id": "default", "name": "Default"}},
            "project": {"id": "p", "name": PROJECT, "domain": {"id": "default"}},
            "roles": [{"id": "r", "name": "member"}],
            "catalog": catalog,
        }
        return 201, {"X-Subject-Token": self.token}, {"token": told}

    def _flavor(self, id: str) -> dict[str, Any]:
        name, processors = FLAVORS[id]
        more = {"swap": "", "OS-FLV-EXT-DATA:ephemeral": 0, "rxtx_factor": 1.0, "links": []}
        return {"id": id, "name": name, "vcpus": processors, "ram": 2048, "disk": 10, **more}

    def _find(self, id: str) -> dict[str, Any]:
        if id not in self.servers:
            raise OpenStackError(404, "itemNotFound", f"Instance {id} could not be found.")
        return self.servers[id]

    def _seen(self, id: str) -> dict[str, Any]:
        is_on = self.processes[id].poll() is None
        # A machine that has shut down is off, and there: it is charged until it is deleted.
        return self.servers[id] | {"status": "ACTIVE" if is_on else "SHUTOFF"}

    def _create(self, wanted: dict[str, Any]) -> str:
        if wanted["imageRef"] != IMAGE:
            raise OpenStackError(400, "badRequest", "Invalid imageRef provided.")
        if wanted["flavorRef"] not in FLAVORS:
            raise OpenStackError(400, "badRequest", "Invalid flavorRef provided.")
        with self.lock:
            if len(self.servers) >= self.quota:
                used = f"but already used {len(self.servers)} of {self.quota} instances"
                words = f"Quota exceeded for instances: Requested 1, {used}"
                raise OpenStackError(403, "forbidden", words)
            id = str(uuid.uuid4())
            script = base64.b64decode(wanted["user_data"])
            self.processes[id] = start_machine(self.folder, id, script)
            self.count += 1
            now = _moment(time.time())
            self.servers[id] = {
                "id": id,
                "name": wanted["name"],
                "metadata": wanted.get("metadata", {}),
                "addresses": {},
                "hostId": "h",
                "tenant_id": "p",
                "user_id": "u",
                "image": {"id": IMAGE, "links": []},
                "flavor": {"id": wanted["flavorRef"], "links": []},
                "links": [{"rel": "self", "href": f"{self.address}/compute/v2.1/servers/{id}"}],
                "created": now,
                "updated": now,
                "OS-EXT-AZ:availability_zone": "nova",
            }
        return id


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def openstack_room(folder: Path, *, quota: int = 10) -> Iterator[OpenStackRoom]:
    """Serve OpenStack's API on this machine for as long as the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    install_programs(folder)
    room = OpenStackRoom(folder, quota=quota)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(room))
    room.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield room
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        room.close()


def _handler_of(room: OpenStackRoom) -> type[BaseHTTPRequestHandler]:
    class OpenStackHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(size)
            path = self.path.partition("?")[0]
            token = self.headers.get("X-Auth-Token", "")
            try:
                body = msgspec.json.decode(text) if text else None
                status, headers, content = room.answer(self.command, path, body, token)
            except OpenStackError as error:
                status, headers, content = error.status, {}, error.body
            told = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_POST = do_GET  # noqa: N815
        do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return OpenStackHandler
