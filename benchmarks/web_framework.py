"""
What the API costs on its own routes, and what the same requests cost over Litestar.

The peer is Litestar, used as its users use it: msgspec types in the signatures, our admission as
its middleware, our problem documents as its exception handlers. Both are asked in one process
without sockets, in turns; times are processor time per request, and the ratio is the figure to
trust. "Own decoder" reads the body in the handler, as the API does, in place of Litestar's `data`.

    python benchmarks/web_framework.py [--quick] [--json FILE]
"""

import asyncio
import importlib.util
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, cast

from figures import Benchmark

from bursar.remote import messages as api
from bursar.remote.routes import ROUTES
from bursar.service.config import HttpLimits
from bursar.service.http.app import RequestAdmission, ServiceApi
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.handlers import read_submission
from bursar.service.http.http_messages import HttpRequest, problem_response
from bursar.service.interfaces import SCOPES, Principal, ServiceError

App = Callable[[Any, Any, Any], Awaitable[None]]

HANDLES = 2_000
"""Instances that are asked for in turn: more than the paths that Litestar's router keeps."""


class Engine:
    """The parts of the engine that the measured routes call; they do nothing."""

    def tasks(self, user: str, handle: str, after: int, limit: int) -> api.TaskPage:
        found = [api.TaskInfo(task=after + n, state="waiting") for n in range(limit)]
        return api.TaskPage(tasks=found, next=None)

    async def submit(self, user: str, handle: str, tasks: list[Any], key: str) -> api.Submitted:
        return api.Submitted(first=0, count=len(tasks))


def dependencies() -> ApiDependencies:
    """Return components that answer at once, for a user who may do everything, without limits."""
    ann = Principal(user="ann", scopes=frozenset(SCOPES))
    return ApiDependencies(
        engine=cast(Any, Engine()),
        billing=cast(Any, None),
        tokens=cast(Any, None),
        authenticator=cast(Any, SimpleNamespace(authenticate=lambda *known: ann)),
        manager=cast(
            Any,
            SimpleNamespace(health=lambda: api.Health(status="ok"), served=lambda **known: None),
        ),
        journal=cast(Any, None),
        clock=time.monotonic,
        entropy=random.Random(1).randbytes,
        limits=HttpLimits(rate=1e9, burst=1e9, unauthenticated_rate=1e9, unauthenticated_burst=1e9),
    )


def litestar_app(parts: ApiDependencies) -> App:
    """Return the measured routes over Litestar."""
    from litestar import Litestar, Request, Response, get, post
    from litestar.exceptions import HTTPException, NotFoundException
    from litestar.params import Parameter

    admission = RequestAdmission(parts)
    routes = {route.name: route for route in ROUTES}
    engine = parts.engine

    class Admission:
        def __init__(self, app: App) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            request = HttpRequest(scope, receive)
            request.check_origin(parts.names)
            request.check_headers()
            route = routes[scope["route_handler"].operation_id]
            with ExitStack() as held:
                principal = admission.authenticate(request, route)
                admission.admit(principal, route, held)
                scope["state"]["user"] = principal.user
                await self.app(scope, receive, send)

    def refused(request: Request[Any, Any, Any], error: Any) -> Response[bytes]:
        if isinstance(error, NotFoundException):
            error = ServiceError("not-found", 404, "there is nothing at this address")
        elif isinstance(error, HTTPException):
            first: Any = (error.extra or [{"message": error.detail}])[0]
            status = 422 if first.get("source") == "body" else error.status_code
            error = ServiceError("bad-value", status, first["message"], where=first.get("key", ""))
        reply = problem_response(error)
        return Response(reply.body, status_code=reply.status, media_type=reply.kind)

    @get("/health", operation_id="health")
    async def health() -> api.Health:
        return parts.manager.health()

    @get("/instances/{handle:str}/tasks", operation_id="tasks")
    async def tasks(
        handle: str,
        request: Request[Any, Any, Any],
        after: Annotated[int, Parameter(ge=0)] = 0,
        limit: Annotated[int, Parameter(ge=1, le=10_000)] = 1000,
    ) -> api.TaskPage:
        return engine.tasks(request.scope["state"]["user"], handle, after, limit)

    @post("/instances/{handle:str}/tasks", operation_id="submit", status_code=202)
    async def submit(
        handle: str, data: api.Submission, request: Request[Any, Any, Any]
    ) -> api.Submitted:
        return await engine.submit(request.scope["state"]["user"], handle, data.tasks, "")

    @post("/own/{handle:str}/tasks", operation_id="submit", status_code=202)
    async def submit_own(handle: str, request: Request[Any, Any, Any]) -> api.Submitted:
        found = read_submission(await request.body())
        return await engine.submit(request.scope["state"]["user"], handle, found, "")

    made: Any = Litestar(
        [health, tasks, submit, submit_own],
        path="/v1",
        middleware=[Admission],
        exception_handlers={HTTPException: refused, ServiceError: refused},
        response_headers={"cache-control": "no-store", "x-content-type-options": "nosniff"},
        openapi_config=None,
        logging_config=None,
    )
    return cast(App, made)


@dataclass(frozen=True, slots=True)
class Case:
    """A request to be measured: ``{}`` in the paths stands for the number of an instance."""

    name: str
    method: str
    path: str
    status: int
    times: int
    body: bytes = b""
    peer_path: str = ""


async def milliseconds(app: App, case: Case, path: str) -> float:
    """Return the processor time of one request, on average over a turn."""
    target, _, query = path.partition("?")

    async def receive() -> Any:
        return {"type": "http.request", "body": case.body, "more_body": False}

    async def send(message: Any) -> None:
        if message.get("status", case.status) != case.status:
            raise RuntimeError(f"{case.name}: answered with {message['status']}")

    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer x"), (b"accept", b"*/*")]
    if case.body:
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(case.body)))
    began = time.process_time()
    for number in range(case.times):
        where = target.replace("{}", str(number % HANDLES))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": case.method,
            "scheme": "http",
            "path": where,
            "raw_path": where.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "headers": headers,
        }
        await app(scope, receive, send)
    return 1e3 * (time.process_time() - began) / case.times


def cases(times: int) -> list[Case]:
    """Return what is asked: light requests so many times a turn, heavy ones less often."""
    lines = [{"command": ["/bin/echo", f"hello {n}"], "processors": 1} for n in range(1000)]
    thousand = json.dumps({"tasks": lines}).encode()
    wrong = json.dumps({"tasks": [{"command": ["a"], "processors": "x"}]}).encode()
    tasks, own = "/v1/instances/{}/tasks", "/v1/own/{}/tasks"
    heavy = max(1, times // 20)
    return [
        Case("GET health", "GET", "/v1/health", 200, times),
        Case("GET a page of tasks", "GET", f"{tasks}?limit=3", 200, times),
        Case("POST 1,000 tasks", "POST", tasks, 202, heavy, thousand),
        Case("POST 1,000 tasks, own decoder", "POST", tasks, 202, heavy, thousand, own),
        Case("422 with the field", "POST", tasks, 422, times, wrong),
        Case("422 with the field, own decoder", "POST", tasks, 422, times, wrong, own),
        Case("404", "GET", "/v1/nothing", 404, times),
    ]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return a bootstrap 95 % interval of the median, with a seed."""
    rng = random.Random(1)
    found = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return found[25], found[974]


async def measure(bench: Benchmark, turns: int, times: int) -> None:
    """Ask both in turns, the order reversed each time; the first turn does not count."""
    parts = dependencies()
    ours, peer = ServiceApi(parts), litestar_app(parts)
    table = bench.table(
        f"one request without sockets, {turns} turns, ms of processor time",
        "request",
        "ours",
        "Litestar",
        "Litestar / ours",
        "95 % from",
        "to",
    )
    for case in cases(times):
        found: dict[App, list[float]] = {ours: [], peer: []}
        for turn in range(turns + 1):
            for app in (ours, peer) if turn % 2 else (peer, ours):
                path = case.path if app is ours else case.peer_path or case.path
                found[app].append(await milliseconds(app, case, path))
        ratios = [b / a for a, b in zip(found[ours][1:], found[peer][1:], strict=True)]
        medians = (statistics.median(found[app][1:]) for app in (ours, peer))
        table.add(case.name, *medians, statistics.median(ratios), *interval(ratios))
    ours.close()


def main() -> None:
    """Measure, unless the peer is absent."""
    bench = Benchmark(__file__, __doc__)
    if importlib.util.find_spec("litestar") is None:
        bench.skip("Litestar is not installed (pip install 'litestar>=2.25')")
    else:
        turns, times = bench.of((20, 2_000), (10, 500), (2, 20))
        asyncio.run(measure(bench, turns, times))
    bench.write()


if __name__ == "__main__":
    main()
