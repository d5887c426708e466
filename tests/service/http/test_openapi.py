"""The OpenAPI document, and the API held against it."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.service.http.api_rig import FakeManager, Listener

from bursar.model.site import SiteFacts
from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken
from bursar.remote.messages import PREFIX
from bursar.remote.routes import PUT_ARCHIVE, ROUTES
from bursar.service.billing import ServiceBilling
from bursar.service.config import HttpLimits, MarketSettings
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.http.app import ServiceApi, document
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.http_connection import serve_http
from bursar.service.identity.authentication import Authenticator, JournalTokenStore
from bursar.service.interfaces import SCOPES
from bursar.store import RealDisk, RecordStore

DOCUMENT: dict[str, Any] = msgspec.json.decode(document("1"))


def test_the_document_has_every_route_and_nothing_else() -> None:
    """
    A route that is missing here is one that no client finds, and no fuzzer tries.
    """
    documented = {
        (method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found
    }

    assert documented == {
        (route.method, PREFIX + route.path.replace("*}", "}")) for route in ROUTES
    }


def test_what_the_document_refers_to_is_there() -> None:
    """
    Every reference leads to a schema, and every name in a path is a parameter.
    """
    text = document("1").decode()
    for name in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert name in DOCUMENT["components"]["schemas"]
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


LINES = st.lists(
    st.sampled_from(
        [b'{"command":["true"]}', b'{"shell":"true","processors":2}', b"{}", b"{", b""]
    ),
    max_size=4,
)
schemathesis.openapi.media_type("application/x-ndjson", LINES.map(b"\n".join))
for kind in PUT_ARCHIVE.body_kinds:
    schemathesis.openapi.media_type(kind, st.binary(max_size=2000))

schema = schemathesis.openapi.from_dict(DOCUMENT)


CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@dataclass
class Fuzzed:
    """A service that is asked whatever comes to mind."""

    url: str
    token: str
    handle: str
    listener: Listener


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """
    The real engine, desk, journal and tokens over real sockets; no worker ever comes.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ended = asyncio.Event()
    ready: Future[Fuzzed] = Future()
    life = asyncio.run_coroutine_threadsafe(
        live(tmp_path_factory.mktemp("service"), ready, ended), loop
    )
    life.add_done_callback(lambda done: ready.done() or ready.set_exception(done.exception()))
    try:
        yield ready.result(30)
    finally:
        loop.call_soon_threadsafe(ended.set)
        life.result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def live(folder: Path, ready: "Future[Fuzzed]", ended: asyncio.Event) -> None:
    """The service, until it is told to end."""
    disk = RealDisk(folder / "state")
    journal = RecordStore(disk)
    facts = SiteFacts(name="here", kind="local", processors=4)
    tokens = JournalTokenStore(journal, clock=time.time, entropy=os.urandom)
    desk = ServiceBilling(
        journal, site=facts, selling=MarketSettings(), users={}, clock=time.time, entropy=os.urandom
    )
    engine = ServiceEngine(
        journal,
        desk.admission,
        clock=time.time,
        entropy=os.urandom,
        homes=InstanceHomes(folder / "instances"),
    )
    await journal.open()
    desk.open()
    await engine.open()
    listener = FakeManager()
    limits = HttpLimits(rate=1e6, burst=1e6, unauthenticated_rate=1e6, unauthenticated_burst=1e6)
    app = ServiceApi(
        ApiDependencies(
            engine=engine,
            billing=desk,
            tokens=tokens,
            authenticator=Authenticator("tls", tokens),
            manager=listener,
            journal=journal,
            clock=time.time,
            entropy=os.urandom,
            limits=limits,
        )
    )
    app.end_streams()  # nothing waits
    found = await serve_http(app, limits=limits)
    made = tokens.create(NewToken(user="ann", scopes=list(SCOPES)))
    kept = await engine.create("ann", api.NewInstance(), "")
    ready.set_result(
        Fuzzed(f"http://127.0.0.1:{found.addresses[0][1]}", made.token, kept.id, listener)
    )
    await ended.wait()
    await found.close(5)
    app.close()
    await engine.close()
    await journal.close()


@schema.parametrize()
@settings(max_examples=6, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_whatever_is_asked_is_answered_by_the_document(case: Any, fuzzed: Fuzzed) -> None:
    """
    No fault of ours, and no answer that the document does not know.
    """
    if "id" in case.path_parameters and case.operation.method != "delete":
        case.path_parameters["id"] = fuzzed.handle
    case.call_and_validate(
        base_url=fuzzed.url,
        headers={"authorization": f"Bearer {fuzzed.token}"},
        checks=CHECKS,
    )
    assert not fuzzed.listener.failures
