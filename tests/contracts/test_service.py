"""
The HTTP interface of a running service: its OpenAPI document, and who may ask what.

The document is a golden file. The matrix of authorisation is made from the document, so a new
route fails until somebody has looked at its row; the tests of ``tests/service/http`` hold routing,
handlers and limits within one process.
"""

import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contracts.command import PATIENCE, CommandFolder, first_document
from tests.contracts.golden import FOLDER
from tests.recording import assert_recorded

SERVICE = """\
[service]
name = "here"
folder = "state"
listen = "127.0.0.1:0"
security = "tls"
certificate = "certs/server-here.pem"
key = "certs/server-here.pem"

[site]
processors = 1
unit_price = "3600 SU/core-hour"

[market.exchange]
every = 1000000000

[limits.requests]
failure_burst = 1000.0
"""

TOKENS = {
    "user": ("ann", ["submit", "read"]),
    "other": ("bob", ["submit", "read"]),
    "reader": ("ann", ["read"]),
    "submitter": ("ann", ["submit"]),
    "seller": ("sam", ["sell"]),
    "admin": ("root", ["admin"]),
}
"""User and scopes of each token that is made for the matrix."""

CALLERS = ("nobody", "forged", "expired", *TOKENS, "first")
"""
Columns of the matrix: without a token, with one that was never made, with one of ann's whose time
is over, with those above, and with the first token of the service, which has every scope.
"""

FORGED = "bursar_" + "0" * 16 + "_" + "0" * 64

METHODS = ("get", "put", "post", "delete")


@dataclass(frozen=True)
class Operation:
    """
    One thing that the document says can be asked.

    Parameters
    ----------
    method, path
        How HTTP names it.
    about
        What the document says of it.
    """

    method: str
    path: str
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.about["operationId"])

    @property
    def is_public(self) -> bool:
        return not self.about.get("security")


@dataclass
class RunningService:
    """
    A service under TLS that ``bursar serve`` runs, and an instance with a finished task.

    Parameters
    ----------
    client
        Speaks HTTP with it.
    document
        The OpenAPI document that it serves.
    tokens
        By caller; nobody has none.
    values
        What stands for the names in paths.
    """

    client: httpx.Client
    document: dict[str, Any]
    tokens: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def ask(self, caller: str, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask as somebody; of an answer that never ends only the head is read."""
        headers = dict(options.pop("headers", {}))
        if caller in self.tokens:
            headers["authorization"] = f"Bearer {self.tokens[caller]}"
        request = self.client.build_request(method, path, headers=headers, **options)
        response = self.client.send(request, stream=True)
        try:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                response.read()
        finally:
            response.close()
        return response

    def get(self, caller: str, method: str, path: str, **options: Any) -> Any:
        """Ask as somebody who must be answered."""
        response = self.ask(caller, method, path, **options)
        assert response.is_success, (method, path, response.text)
        return response.json()

    def operations(self) -> list[Operation]:
        """Return what the document has: removals come last, and the drain at the very end."""
        found = [
            Operation(method.upper(), path, about)
            for path, methods in self.document["paths"].items()
            for method, about in methods.items()
            if method in METHODS
        ]
        assert len(found) == sum(map(len, self.document["paths"].values()))
        return sorted(
            found,
            key=lambda one: (one.name == "drain", one.method == "DELETE", one.path, one.method),
        )

    def token(self, user: str, scopes: list[str], **more: Any) -> dict[str, Any]:
        """Return a new token of a user, with its secret."""
        told: dict[str, Any] = self.get(
            "first", "POST", "/v1/admin/tokens", json={"user": user, "scopes": scopes, **more}
        )
        return told

    def furnish(self) -> None:
        """Make what the paths of the matrix name: an instance, a result, a file, an agreement."""
        for caller, (user, scopes) in TOKENS.items():
            self.tokens[caller] = self.token(user, scopes)["token"]
        self.tokens["expired"] = self.token(*TOKENS["user"], seconds=0.001)["token"]
        handle = self._instance()
        long = {"shell": "head -c 300000 /dev/zero | tr '\\\\0' x"}
        self.get("user", "POST", f"/v1/instances/{handle}/tasks", json={"tasks": [long]})
        page = self.get("user", "GET", f"/v1/instances/{handle}/results?wait={PATIENCE}")
        assert [result["state"] for result in page["results"]] == ["succeeded"]
        self.values = {
            "id": handle,
            "task": "0",
            "stream": "stdout",
            "name": "there.txt",
            "agreement": self._agreement(),
            "user": "ann",
            "order": "no-order",
            "trade": "no-trade",
        }

    def _instance(self) -> str:
        """Return a new instance of ann's, with a file in it."""
        handle: str = self.get("user", "POST", "/v1/instances", json={})["id"]
        self.get("user", "PUT", f"/v1/instances/{handle}/files/there.txt", content=b"there")
        return handle

    def _agreement(self) -> str:
        """Return an agreement of ann's on the service's processor, an hour from now."""
        about = {"deal": "deal", "sender": "ann", "to": "here"}
        template = {"processors": 1, "seconds": 60.0, "earliest": time.time() + 3600.0}
        asked = {"kind": "request-quote", "number": 1, "template": template}
        (quote,) = self.get("user", "POST", "/v1/trade/messages", json=about | asked)
        accept = {"kind": "accept", "number": 2, "of": quote["number"]}
        (confirm,) = self.get("user", "POST", "/v1/trade/messages", json=about | accept)
        assert confirm["kind"] == "confirm", confirm
        return str(confirm["agreement"]["id"])

    def request(self, operation: Operation, user: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request that is well formed, whoever sends it."""
        values = dict(self.values)
        if "{token}" in operation.path:
            values["token"] = self.token("victim", ["read"])["id"]
        if operation.name in ("destroy-instance", "delete-file"):
            values["id"] = self._instance()  # so that each caller finds something to remove
        names = [part["name"] for part in operation.about["parameters"] if part["in"] == "path"]
        missing = [name for name in names if name not in values]
        assert not missing, f"{operation}: say in RunningService.furnish what {missing} may be"
        bodies: dict[str, dict[str, Any]] = {
            "create-instance": {"json": {}},
            "submit": {"json": {"tasks": [{"command": ["true"]}]}},
            "cancel": {"json": {}},
            "put-file": {"content": b"data"},
            "put-archive": {
                "content": b"\0" * 1024,
                "headers": {"content-type": "application/x-tar"},
            },
            "copy-files": {"json": {"source": self.values["id"], "files": ["there.txt"]}},
            "trade": {
                "json": {
                    "kind": "request-quote",
                    "deal": f"deal-{user}",
                    "sender": user,
                    "to": "here",
                    "number": 1,
                    "template": {"processors": 1, "seconds": 1.0},
                }
            },
            "reprice": {"json": {"base": 1.0}},
            "reserve": {
                "json": {"deal": "r", "processors": 1, "start": time.time() + 9e3, "seconds": 1.0}
            },
            "hand-over": {"json": {"parts": []}},
            "place-order": {
                "json": {"key": "k", "side": "bid", "closes": 0.0, "start": 0.0, "seconds": 1.0}
            },
            "report-trade": {"json": {"step": "confirmed"}},
            "create-token": {"json": {"user": "victim", "scopes": ["read"]}},
            "deposit": {"json": {"amount": 1, "key": "k"}},
            "drain": {"json": {}},
            "forget": {"params": {"through": 1}},
        }
        needs_body = "requestBody" in operation.about
        assert not needs_body or operation.name in bodies, f"{operation}: say what its body may be"
        return operation.path.format(**values), bodies.get(operation.name, {})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Run a service with certificates of an authority of its own."""
    folder = CommandFolder(tmp_path_factory.mktemp("service"))
    folder.bursar("certs", "init", "--folder", "certs")
    made = ("--folder", "certs", "--out", "certs")
    folder.bursar("certs", "server", "here", "--host", "127.0.0.1", *made)
    folder.write("service.toml", SERVICE)
    process = folder.start("serve", "--config", "service.toml", "--json")
    try:
        told = first_document(process)
        trust = ssl.create_default_context(cafile=str(folder.path / "certs" / "ca.pem"))
        with httpx.Client(base_url=told["url"], verify=trust, timeout=2 * PATIENCE) as client:
            running = RunningService(client, client.get("/v1/openapi.json").json())
            running.tokens["first"] = Path(told["admin_token_file"]).read_text().strip()
            running.tokens["forged"] = FORGED
            running.furnish()
            yield running
    finally:
        folder.close()


def test_the_openapi_document_is_the_recorded_one(service: RunningService) -> None:
    """Clients in other languages are generated from it: each change of it is looked at."""
    document = json.loads(json.dumps(service.document))
    document["info"]["version"] = "<version>"

    lines = json.dumps(document, indent=1, sort_keys=True).splitlines()

    assert_recorded(FOLDER / "openapi.json", lines)


def test_every_route_answers_every_caller_as_recorded(service: RunningService) -> None:
    """A route without a row, a row without a route and another status are differences."""
    rows = {}
    for operation in service.operations():
        answers = {}
        for caller in CALLERS:
            path, body = service.request(operation, TOKENS.get(caller, ("owner", []))[0])
            response = service.ask(caller, operation.method, path, **body)
            answers[caller] = response.status_code
            assert not response.is_error or response.json()["detail"], (operation, caller)
            if response.status_code == 401:
                assert response.headers["www-authenticate"] == "Bearer"
        if not operation.is_public:
            strangers = {answers[caller] for caller in ("nobody", "forged", "expired")}
            assert strangers == {401}, operation
        rows[operation.path, operation.method] = answers

    width = max(len(path) for path, _ in rows)
    head = f"{'':6} {'':{width}} {' '.join(CALLERS)}"
    table = [
        f"{method:6} {path:{width}} "
        + " ".join(f"{answers[caller]:<{len(caller)}}" for caller in CALLERS).rstrip()
        for (path, method), answers in sorted(rows.items())
    ]

    assert_recorded(FOLDER / "authorisation.txt", [head, *table])
