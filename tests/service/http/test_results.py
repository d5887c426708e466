"""Results as pages, lines, streams and events."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.service.http.api_rig import TOKENS, World

from bursar.remote import messages as api
from bursar.service.config import HttpLimits

LINES = {"accept": "application/x-ndjson"}


def with_tasks(world: World, tasks: int, finished: int) -> None:
    world.engine.make("ann", "mine")
    world.engine.held["mine"].tasks = [api.TaskSpec(shell="true")] * tasks
    world.engine.finish("mine", *range(finished))


def scope_of(path: str, query: str = "", **headers: str) -> dict[str, Any]:
    given = {"host": "localhost", "authorization": "Bearer all"} | headers
    return {
        "type": "http",
        "method": "GET",
        "path": f"/v1{path}",
        "query_string": query.encode(),
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()],
        "client": ("127.0.0.1", 1),
    }


class Exchange:
    """A request over ASGI whose answer is read as it comes, and whose client may go."""

    def __init__(self, world: World, path: str, query: str = "", **headers: str) -> None:
        self._scope = scope_of(path, query, **headers)
        self._gone = asyncio.Event()
        self._asked = False
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(
            world.api(self._scope, self._receive, self.messages.put)  # type: ignore[arg-type]
        )

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def head(self) -> int:
        status: int = (await self.messages.get())["status"]
        return status

    async def piece(self) -> bytes:
        piece: bytes = (await self.messages.get())["body"]
        return piece

    async def leave(self) -> None:
        self._gone.set()
        await self.task


def test_a_page_has_the_results_after_a_cursor(world: World) -> None:
    """
    As JSON and as lines; ``done`` when every task's result was at or before the cursor.
    """

    async def main() -> None:
        with_tasks(world, 3, 3)
        async with world.client() as client:
            page = msgspec.json.decode(
                (await client.get("/instances/mine/results?after=1&limit=1")).content,
                type=api.ResultPage,
            )
            assert [result.task for result in page.results] == [1]
            assert (page.next, page.done) == (2, False)
            lines = await client.get("/instances/mine/results?after=2", headers=LINES)
            (last,) = msgspec.json.Decoder(api.Result).decode_lines(lines.content)
            assert last.cursor == 3
            assert (lines.headers["bursar-next"], lines.headers["bursar-done"]) == ("3", "true")
            nothing = await client.get("/instances/mine/results?after=3", headers=LINES)
            assert nothing.content == b""
            assert nothing.headers["bursar-next"] == "3"

    asyncio.run(main())


def test_a_request_that_waits_is_answered_by_the_first_result(world: World) -> None:
    """
    Long polling: neither before, nor only when the time is over.
    """

    async def main() -> None:
        with_tasks(world, 1, 0)
        exchange = Exchange(world, "/instances/mine/results", "wait=60")
        for _ in range(10):
            await asyncio.sleep(0)
        assert exchange.messages.empty()
        world.engine.finish("mine", 0)
        assert await exchange.head() == 200
        assert b'"next":1,"done":true' in await exchange.piece()
        await exchange.leave()

    asyncio.run(main())


@pytest.mark.parametrize("query", ["wait=60", "follow=true"])
def test_a_client_that_leaves_keeps_nothing_waiting(world: World, query: str) -> None:
    """
    Else every lost connection would cost a task until the hour is over.
    """

    async def main() -> None:
        with_tasks(world, 1, 0)
        exchange = Exchange(world, "/instances/mine/results", query)
        for _ in range(10):
            await asyncio.sleep(0)
        await exchange.leave()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_at_the_end_whoever_waits_is_answered(world: World) -> None:
    """
    A service that ends does not wait a minute for its long polls; later ones return at once.
    """

    async def main() -> None:
        with_tasks(world, 1, 0)
        waiting = Exchange(world, "/instances/mine/results", "after=0&wait=60")
        following = Exchange(world, "/instances/mine/results", "follow=true")
        for _ in range(10):
            await asyncio.sleep(0)
        world.api.end_streams()
        assert await waiting.head() == 200
        assert await waiting.piece() == b'{"results":[],"next":0,"done":false}'
        await following.task
        late = Exchange(world, "/instances/mine/results", "after=0&wait=60")
        assert await late.head() == 200
        for exchange in (waiting, late):
            await exchange.leave()

    asyncio.run(main())


def test_a_stream_goes_on_until_all_is_done_and_is_resumed_by_its_cursor(tmp_path: Path) -> None:
    """
    Lines as they come, empty ones in between to show that it lives, and none twice.
    """
    world = World(tmp_path, HttpLimits(heartbeat=0.005))

    async def lines(exchange: Exchange) -> AsyncIterator[bytes]:
        while True:
            message = await exchange.messages.get()
            if message.get("body"):
                yield message["body"]
            if message["type"] == "http.response.body" and not message.get("more_body"):
                return

    async def main() -> None:
        with_tasks(world, 3, 1)
        exchange = Exchange(world, "/instances/mine/results", "follow=true")
        assert await exchange.head() == 200
        assert b'"cursor":1' in await exchange.piece()
        assert await exchange.piece() == b"\n"
        world.engine.finish("mine", 1)
        while (piece := await exchange.piece()) == b"\n":
            pass
        assert b'"cursor":2' in piece
        await exchange.leave()
        again = Exchange(world, "/instances/mine/results", "follow=true&after=2")
        await again.head()
        world.engine.finish("mine", 2)
        said = b"".join([piece async for piece in lines(again)])
        (last,) = msgspec.json.Decoder(api.Result).decode_lines(said)
        assert last.cursor == 3
        await again.task

    asyncio.run(main())
    world.api.close()


@pytest.mark.parametrize("path", ["events", "results"])
def test_a_stream_ends_with_the_token_that_it_was_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """
    Else who has a token that was revoked goes on to hear for as long as the stream lasts.
    """
    world = World(tmp_path, HttpLimits(heartbeat=0.005))

    async def main() -> None:
        with_tasks(world, 2, 1)
        query = "follow=true" if path == "results" else ""
        exchange = Exchange(world, f"/instances/mine/{path}", query)
        assert await exchange.head() == 200
        assert await exchange.piece()
        assert len(await exchange.piece()) < 5  # it only shows that it lives
        monkeypatch.delitem(TOKENS, "all")
        world.engine.finish("mine", 1)
        goes_on = True
        while goes_on:
            message = await exchange.messages.get()
            assert b'"cursor":2' not in message["body"]
            assert b'"results":2' not in message["body"]
            goes_on = message.get("more_body", False)
        await exchange.task

    asyncio.run(main())


def test_events_tell_of_each_change_and_take_up_where_they_left(tmp_path: Path) -> None:
    """
    Server-sent events: the state at first, then changes; ``id`` is the cursor of results.
    """
    world = World(tmp_path, HttpLimits(heartbeat=0.005))

    async def main() -> None:
        with_tasks(world, 2, 0)
        exchange = Exchange(world, "/instances/mine/events")
        assert await exchange.head() == 200
        first = await exchange.piece()
        assert first.startswith(b"id: 0\nevent: instance\ndata: {")
        assert first.endswith(b"}\n\n")
        assert await exchange.piece() == b": \n\n"
        world.engine.finish("mine", 0)
        while (piece := await exchange.piece()) == b": \n\n":
            pass
        assert piece.startswith(b"id: 1\n")
        await exchange.leave()
        # What it says was told before is not said again; what it missed is.
        known = Exchange(world, "/instances/mine/events", last_event_id="1")
        await known.head()
        assert await known.piece() == b": \n\n"
        await known.leave()
        missed = Exchange(world, "/instances/mine/events", last_event_id="0")
        await missed.head()
        assert (await missed.piece()).startswith(b"id: 1\n")
        await missed.leave()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    world.api.close()


def test_streams_of_a_user_are_counted_until_they_end(tmp_path: Path) -> None:
    """
    A user cannot hold more of them than is allowed, and ended ones make room.
    """
    world = World(tmp_path, HttpLimits(streams=1))

    async def main() -> None:
        with_tasks(world, 1, 0)
        first = Exchange(world, "/instances/mine/events")
        assert await first.head() == 200
        second = Exchange(world, "/instances/mine/results", "follow=true")
        assert await second.head() == 429
        await first.leave()
        third = Exchange(world, "/instances/mine/events")
        assert await third.head() == 200
        for exchange in (second, third):
            await exchange.leave()

    asyncio.run(main())
    world.api.close()


def test_a_stream_ends_after_some_time(tmp_path: Path) -> None:
    """
    So that who may not ask any more hears no more either; the end is a neat one.
    """
    world = World(tmp_path, HttpLimits(stream_seconds=0.01))

    async def main() -> None:
        with_tasks(world, 1, 0)
        exchange = Exchange(world, "/instances/mine/results", "follow=true")
        assert await exchange.head() == 200
        assert await exchange.piece() == b"\n"
        last = await exchange.messages.get()
        assert last == {"type": "http.response.body", "body": b""}
        await exchange.task

    asyncio.run(main())
    world.api.close()


def test_results_are_forgotten_up_to_a_cursor(world: World) -> None:
    """
    The client says so, and the engine is told of exactly that.
    """

    async def main() -> None:
        with_tasks(world, 2, 2)
        async with world.client() as client:
            response = await client.delete("/instances/mine/results?through=2")
            assert response.status_code == 204
            assert world.engine.held["mine"].forgotten == 2

    asyncio.run(main())


@pytest.mark.parametrize("query", ["limit=10", "follow=true"])
def test_answers_that_nobody_takes_have_a_bound(tmp_path: Path, query: str) -> None:
    """
    One is always given, in pieces; the next must wait until there is room again, or ends early.
    """

    async def main() -> None:
        world = World(tmp_path, HttpLimits(answered_bytes=3 << 20))
        with_tasks(world, 2, 0)
        held = world.engine.held["mine"]
        held.lines = [b'{"cursor":1,"task":0,"state":"succeeded","stdout":"%b"}' % bytes(2 << 20)]
        scope = scope_of("/instances/mine/results", query)
        sizes: list[int] = []
        taking = asyncio.Event()

        async def slow(message: Any) -> None:
            sizes.append(len(message.get("body", b"")))
            if sizes[-1]:
                await taking.wait()

        asked = asyncio.create_task(world.api(dict(scope), Silent().receive, slow))
        while not any(sizes):
            await asyncio.sleep(0)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        await world.api(dict(scope), Silent().receive, answers.put)  # type: ignore[arg-type]
        status, body = (await answers.get())["status"], (await answers.get())["body"]
        assert (status, body) == (200, b"") if "follow" in query else status == 429
        taking.set()
        world.engine.finish("mine", 1)
        await asked
        assert sum(sizes) > 2 << 20
        if "follow" not in query:
            assert max(sizes) <= 1 << 18

    asyncio.run(main())


class Silent:
    """A client that asks, and stays."""

    def __init__(self) -> None:
        self._asked = False

    async def receive(self) -> Any:
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}
