"""A service that runs nothing: each task has printed its last word at once."""

import asyncio
import threading
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bursar.remote import messages as api

ENCODE = msgspec.json.Encoder().encode
TASKS = msgspec.json.Decoder(api.TaskSpec)
PIECE = 200


class SmallService:
    """On a port of this machine, in a thread of its own, until it is closed."""

    def __init__(self) -> None:
        self._results: dict[str, list[bytes]] = {}
        self._labels: dict[str, str] = {}
        routes = [
            Route("/v1/site", self._site),
            Route("/v1/instances", self._instances, methods=["GET", "POST"]),
            Route("/v1/instances/{id}", self._instance, methods=["GET", "DELETE"]),
            Route("/v1/instances/{id}/tasks", self._submit, methods=["POST"]),
            Route("/v1/instances/{id}/results", self._read),
        ]
        config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._started.wait()

    async def _serve(self) -> None:
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup()
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        self._started.set()
        await self._server.main_loop()
        await self._server.shutdown()

    def close(self) -> None:
        """Ends it."""
        self._server.should_exit = True
        self._thread.join()

    async def _site(self, _: Request) -> Response:
        return Response(ENCODE(api.SiteInfo(name="small", processors=1, free=1)))

    async def _instances(self, request: Request) -> Response:
        if request.method == "GET":
            found = [self._info(handle) for handle in self._results]
            return Response(ENCODE(api.InstanceList(instances=found)))
        new = msgspec.json.decode(await request.body(), type=api.NewInstance)
        handle = request.headers["Idempotency-Key"]
        self._results.setdefault(handle, [])
        self._labels[handle] = new.label
        return Response(ENCODE(self._info(handle)), 201)

    async def _instance(self, request: Request) -> Response:
        handle = request.path_params["id"]
        if handle not in self._results:
            problem = api.Problem(title="Not found", status=404, detail="no such instance")
            return Response(ENCODE(problem), 404)
        if request.method == "DELETE":
            del self._results[handle]
            return Response(status_code=204)
        return Response(ENCODE(self._info(handle)))

    async def _submit(self, request: Request) -> Response:
        results = self._results[request.path_params["id"]]
        first = len(results)
        tasks = TASKS.decode_lines(await request.body())
        for number, task in enumerate(tasks, start=first):
            result = api.Result(
                cursor=number + 1,
                task=number,
                state="succeeded",
                exit_code=0,
                stdout=f"{task.command[-1]}\n",
            )
            results.append(ENCODE(result) + b"\n")
        return Response(ENCODE(api.Submitted(first=first, count=len(tasks))), 202)

    async def _read(self, request: Request) -> Response:
        results = self._results[request.path_params["id"]]
        after = int(request.query_params["after"])
        if "follow" in request.query_params:

            async def pieces() -> Any:
                for start in range(after, len(results), PIECE):
                    yield b"".join(results[start : start + PIECE])

            return StreamingResponse(pieces())
        last = min(len(results), after + PIECE)
        headers = {"Bursar-Next": str(last), "Bursar-Done": str(last == len(results)).lower()}
        return Response(b"".join(results[after:last]), headers=headers)

    def _info(self, handle: str) -> api.InstanceInfo:
        return api.InstanceInfo(
            id=handle, label=self._labels[handle], results=len(self._results[handle])
        )
