"""The web server of ``bursar dashboard``: the page, its data, its events and its actions."""

import asyncio
import logging
import socket
import ssl
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from bursar.dashboard.access import PageAccess, is_own_host
from bursar.dashboard.commands import (
    MOST_TEXT,
    AddedSiteNames,
    GoalChange,
    LabelChange,
    NewCampaign,
    OutOfReach,
    PageCommands,
    RetriedTasks,
)
from bursar.dashboard.run_feed import HEARTBEAT, RunFeed, frame
from bursar.dashboard.run_list import RunList
from bursar.dashboard.site_use import AskedPrices, price_history
from bursar.dashboard.task_table import (
    TableQuery,
    TaskPages,
    output_events,
    read_stream,
    task_details,
    task_of,
)
from bursar.model.errors import BursarError, InputError
from bursar.page.page_files import HEADERS, page_files, shell
from bursar.runs.detached_runs import watch_run
from bursar.runs.folder import RunFolder
from bursar.supervisor import TaskSupervisor

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

Action = Callable[[str, Any], Coroutine[Any, Any, Any]]
"""Does what is asked of the run of a name, and returns the answer's JSON."""

log = logging.getLogger(__name__)

MOST_FEEDS = 8
"""Runs that are kept in memory while nobody looks at them."""

MOST_ANSWERS = 1000
"""Answers to actions that are kept, so that a repeated request does nothing a second time."""

LIST_INTERVAL = 1.0
"""Seconds between two looks at the list of runs."""

LIST_SHARE = 0.05
"""Part of a processor that these looks may take; long lists are looked at less often."""

MOST_PLAIN = 100_000
"""Bytes of a run's data that are sent as they are; more are compressed."""

_SNAPSHOT = 1.5  # seconds for a run to say how it stands

_PIECE = 1 << 18  # bytes of output in one answer


class DashboardServer:
    """
    Serves the page of a user's runs.

    Parameters
    ----------
    runs
        Folder that holds the runs.
    access
        Who may use it.
    tasks
        Owner of the tasks that read runs on.
    """

    def __init__(self, runs: Path, access: PageAccess, tasks: TaskSupervisor) -> None:
        self._runs = runs
        self._access = access
        self._tasks = tasks
        self._commands = PageCommands(runs)
        self._list = RunList(runs)
        self._list_turn = asyncio.Lock()
        self._list_viewers: set[asyncio.Queue[bytes]] = set()
        self._list_is_read = False
        self._feeds: OrderedDict[Path, tuple[RunFeed, TaskPages]] = OrderedDict()
        self._answers: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()
        self._asked_prices = AskedPrices()
        self._hosts: Collection[str] = ()

    def application(self) -> web.Application:
        """Return the application of aiohttp."""
        application = web.Application(
            middlewares=[self._answer], client_max_size=MOST_TEXT + 1_000_000
        )
        run = "/api/runs/{run}"
        task = run + r"/tasks/{task:\d{1,12}}"
        application.add_routes(
            [
                web.get("/", self._shell),
                web.post("/open", self._open),
                web.get("/page/{name}", self._file),
                web.get("/api/runs", self._get_runs),
                web.post("/api/runs", self._act(NewCampaign, lambda _, a: self._commands.run(a))),
                web.get("/api/runs/events", self._get_run_events),
                web.get(run, self._get_run),
                web.get(run + "/events", self._get_events),
                web.get(run + "/tasks", self._get_tasks),
                web.get(task, self._get_task),
                web.get(task + "/{stream:stdout|stderr}", self._get_stream),
                web.get(task + "/output/events", self._get_output_events),
                web.post(run + "/amend", self._act(GoalChange, self._commands.amend)),
                web.post(run + "/stop", self._act(None, lambda r, _: self._commands.stop(r))),
                web.post(run + "/cancel", self._act(None, lambda r, _: self._commands.cancel(r))),
                web.post(run + "/sites", self._act(AddedSiteNames, self._commands.add_sites)),
                web.post(run + "/resume", self._act(None, lambda r, _: self._commands.resume(r))),
                web.post(run + "/retry", self._act(RetriedTasks, self._commands.retry)),
                web.post(run + "/labels", self._act(LabelChange, self._commands.label)),
                web.get("/api/compare", self._compare),
                web.get("/api/sites", self._get_sites),
                web.get("/api/money", self._get_money),
                web.get("/api/money/{account}", self._get_statement),
                web.get("/api/forecasts", self._get_forecasts),
                web.post("/api/plan", self._act(NewCampaign, lambda _, a: self._commands.plan(a))),
            ]
        )
        return application

    def allow(self, hosts: Collection[str]) -> None:
        """Set the values of ``Host`` that are answered."""
        self._hosts = frozenset(hosts)

    # Every request: who asks, what went wrong, and the headers.

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not is_own_host(request.host, self._hosts):
                raise _Refused(421, f'this server is not "{request.host}"')
            if request.path.startswith("/api/") and not self._access.is_valid(
                request.headers.get("Authorization", "")
            ):
                raise _Refused(401, "sign in: the token is missing or not the one of this process")
            response = await handler(request)
        except _Refused as error:
            response = _problem(error.status, str(error))
        except InputError as error:
            response = _problem(422, str(error))
        except OutOfReach as error:
            parts = {name: error.quote.get(name) for name in ("goal", "currency", "counter_offers")}
            response = _problem(409, str(error), parts)
        except BursarError as error:
            response = _problem(409, str(error))
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = _problem(500, "this is a fault of the dashboard; its log has more")
        if not response.prepared:
            _complete(response)
        return response

    # The page itself, which is no secret.

    async def _shell(self, request: web.Request) -> web.Response:
        return self._shell_with("")

    def _shell_with(self, token: str) -> web.Response:
        text = shell({"kind": "local", "token": token})
        return web.Response(text=text, content_type="text/html")

    async def _open(self, request: web.Request) -> web.Response:
        form = await request.post()
        token = self._access.redeem(str(form.get("code", "")))
        if token is None:
            raise _Refused(403, "this code was used already, or is none; start the dashboard again")
        return self._shell_with(token)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        file = page_files().get(name)
        if file is None:
            raise _Refused(404, f'no file "{name}"')
        headers = {"ETag": file.mark, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.mark:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=file.content, content_type=file.kind, charset="utf-8", headers=headers
        )

    # Runs.

    async def _read_list(self) -> tuple[list[dict[str, Any]], set[str]]:
        async with self._list_turn:
            return await asyncio.to_thread(self._list.read)

    async def _get_runs(self, request: web.Request) -> web.Response:
        rows, changed = await self._read_list()
        self._tell_of_runs(rows, changed, set())
        return _json({"folder": str(self._runs.absolute()), "runs": rows})

    async def _get_run_events(self, request: web.Request) -> web.StreamResponse:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._list_viewers.add(queue)
        try:
            if not self._list_is_read:
                self._list_is_read = True
                self._tasks.start(self._watch_list(), name="watch the list of runs")
            return await _stream(request, _queued(queue))
        finally:
            self._list_viewers.discard(queue)

    async def _watch_list(self) -> None:
        known: set[str] = set()
        try:
            while self._list_viewers:
                began = time.monotonic()
                rows, changed = await self._read_list()
                names = {row["run"] for row in rows}
                self._tell_of_runs(rows, changed, known - names)
                known = names
                spent = time.monotonic() - began
                await asyncio.sleep(max(LIST_INTERVAL, spent / LIST_SHARE - spent))
        finally:
            self._list_is_read = False

    def _tell_of_runs(self, rows: list[dict[str, Any]], changed: set[str], gone: set[str]) -> None:
        if not changed and not gone:
            return
        rows = [row for row in rows if row["run"] in changed]
        told = frame("runs", {"changed": rows, "gone": sorted(gone)})
        for viewer in self._list_viewers:
            viewer.put_nowait(told)

    def _run(self, request: web.Request) -> tuple[RunFeed, TaskPages]:
        """Return the feed of the run that a request names, and forget some that nobody watches."""
        folder = self._folder(request)
        found = self._feeds.get(folder.path)
        if found is None:
            found = self._feeds[folder.path] = RunFeed(folder, self._tasks), TaskPages()
        self._feeds.move_to_end(folder.path)
        idle = [path for path, (feed, _) in self._feeds.items() if not feed.is_watched]
        for path in idle[:-MOST_FEEDS]:
            del self._feeds[path]
        return found

    def _folder(self, request: web.Request) -> RunFolder:
        name = request.match_info["run"]
        # A name, never a path: the folder of runs is all that the page shows.
        if not name or "/" in name or name in (".", "..") or "\0" in name:
            raise _Refused(404, f'no run "{name}"')
        try:
            return RunFolder.open(self._runs, name)
        except BursarError as error:
            raise _Refused(404, str(error)) from None

    async def _get_run(self, request: web.Request) -> web.Response:
        feed, _ = self._run(request)
        body = await feed.document()
        headers = {"Content-Type": "application/json"}
        if len(body) > MOST_PLAIN and "deflate" in request.headers.get("Accept-Encoding", ""):
            # The lowest level takes a sixth of the time of the usual one, for a third more bytes.
            body = await asyncio.to_thread(zlib.compress, body, 1)
            headers["Content-Encoding"] = "deflate"
        return web.Response(body=body, headers=headers)

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        feed, _ = self._run(request)
        last = request.headers.get("Last-Event-ID") or request.query.get("version", "0")
        if not last.isdecimal() or len(last) > 15:
            raise InputError(f'expected a number, got "{last}"', where="version")
        return await _stream(request, feed.events(int(last)))

    async def _get_tasks(self, request: web.Request) -> web.Response:
        feed, table = self._run(request)
        query = _converted(dict(request.query), TableQuery)
        page = await feed.page()
        return _json(await asyncio.to_thread(table.read, page, query))

    async def _get_task(self, request: web.Request) -> web.Response:
        feed, _ = self._run(request)
        page = await feed.page()
        number = int(request.match_info["task"])
        return _json(await asyncio.to_thread(task_details, page, number))

    async def _get_stream(self, request: web.Request) -> web.StreamResponse:
        feed, _ = self._run(request)
        number, stream = int(request.match_info["task"]), request.match_info["stream"]
        attempt, offset = _number(request, "attempt"), _number(request, "offset") or 0
        page = await feed.page()
        content, size = await asyncio.to_thread(
            read_stream, page, number, stream, attempt, offset, _PIECE
        )
        return web.Response(
            body=content,
            content_type="text/plain",
            charset="utf-8",
            headers={"X-Size": str(size), "X-Next": str(offset + len(content))},
        )

    async def _get_output_events(self, request: web.Request) -> web.StreamResponse:
        folder, number = self._folder(request), int(request.match_info["task"])
        attempt, tail = _number(request, "attempt"), _number(request, "tail")
        feed, _ = self._run(request)
        task_of((await feed.page()).record, number)
        return await _stream(request, output_events(folder, number, attempt, tail))

    # Actions.

    def _act(
        self, kind: type[T] | None, act: Callable[[str, Any], Coroutine[Any, Any, Any]]
    ) -> Handler:
        """Return the handler of an action, which does a repeated request's work once."""

        async def handle(request: web.Request) -> web.Response:
            name = self._folder(request).name if "run" in request.match_info else ""
            body = await request.read()
            asked = None if kind is None else _decoded(body or b"{}", kind)
            key = request.headers.get("Idempotency-Key", "")
            if not key:
                return _json(await act(name, asked))
            known = self._answers.get(f"{request.path} {key}")
            if known is None:
                known = self._tasks.start(act(name, asked), on_failure=_is_answered)
                self._answers[f"{request.path} {key}"] = known
                while len(self._answers) > MOST_ANSWERS:
                    self._answers.popitem(last=False)
            # What was begun goes on when the browser has left.
            return _json(await asyncio.shield(known))

        return handle

    async def _compare(self, request: web.Request) -> web.Response:
        names = [request.query.get(which, "") for which in ("first", "second")]
        for name in names:
            RunFolder.open(self._runs, name)
        return _json(await self._commands.compare(*names))

    async def _get_sites(self, request: web.Request) -> web.Response:
        said = await self._commands.sites(request.query.get("file", ""))
        await self._read_list()
        now = time.time()
        self._asked_prices.note(now, said["sites"])
        used = [await _use_of(folder) for folder in self._list.live()[:MOST_FEEDS]]
        more = {
            "prices": price_history([*self._list.prices(), *self._asked_prices.rows()]),
            "pilots": self._list.pilots(now),
            "use": [row for rows in used for row in rows],
        }
        return _json(said | more)

    async def _get_money(self, request: web.Request) -> web.Response:
        await self._read_list()
        accounts = await self._commands.accounts()
        return _json({"accounts": accounts} | await asyncio.to_thread(self._list.money))

    async def _get_statement(self, request: web.Request) -> web.Response:
        return _json(await self._commands.statement(request.match_info["account"]))

    async def _get_forecasts(self, request: web.Request) -> web.Response:
        return _json(await self._commands.forecasts())


class _Refused(Exception):
    """A request that is answered by a status and one line."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def _use_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Return how many processors a run has at each site, and how many of them are busy, now."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SNAPSHOT), aclosing(watch_run(folder)) as updates:
            async for update in updates:
                if update.snapshot is not None:
                    return [
                        {
                            "run": folder.name,
                            "site": site.name,
                            "asked": site.asked,
                            "held": site.processors,
                            "busy": site.busy,
                            "idle": max(0, site.processors - site.busy),
                        }
                        for site in update.snapshot.sites
                    ]
    return []


def _is_answered(error: BaseException) -> None:
    """Do nothing: whoever asked for the action gets its failure."""


def _complete(response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")


def _json(data: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type="application/json")


def _problem(status: int, detail: str, more: Mapping[str, Any] | None = None) -> web.Response:
    detail = "; ".join(detail.splitlines())
    body = msgspec.json.encode(
        {"status": status, "title": detail, "detail": detail, **(more or {})}
    )
    return web.Response(body=body, status=status, content_type="application/problem+json")


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _Refused(400, f"the body cannot be read: {error}") from None


def _converted(values: dict[str, str], kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _Refused(400, f"the query cannot be read: {error}") from None


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise InputError(f'expected a whole number, got "{text}"', where=name)
    return int(text)


async def _queued(queue: "asyncio.Queue[bytes]") -> AsyncGenerator[bytes, None]:
    yield frame("hello", {})
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT):
                yield await queue.get()
        except TimeoutError:
            yield b": still here\n\n"


async def _stream(request: web.Request, frames: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Send events until either side ends."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    _complete(response)
    await response.prepare(request)
    try:
        async with aclosing(frames):
            async for one in frames:
                await response.write(one)
    except ConnectionError:
        pass  # the viewer has gone
    return response


def is_free(host: str, port: int) -> bool:
    """Return whether a port can be listened on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


async def serve_dashboard(
    runs: Path,
    access: PageAccess,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    names: Collection[str],
    on_ready: Callable[[str], None],
) -> None:
    """
    Serve the page until cancelled.

    Parameters
    ----------
    port
        Port; 0: any free one.
    names
        Further names of this machine that the page is asked for by.
    on_ready
        Called with the page's address once it answers.

    Raises
    ------
    BursarError
        When the address cannot be listened on.
    """
    async with TaskSupervisor(_is_logged) as tasks:
        server = DashboardServer(runs, access, tasks)
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                site = web.TCPSite(runner, host, port, ssl_context=tls)
                await site.start()
            except OSError as error:
                raise BursarError(
                    f"{host}:{port}: cannot be listened on: {error.strerror}"
                ) from None
            bound = runner.addresses[0][1]
            own = {host, "localhost", "127.0.0.1", "[::1]", *names}
            server.allow({f"{name.lower()}:{bound}" for name in own} | set(own))
            scheme = "https" if tls else "http"
            on_ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{bound}/")
            await asyncio.get_running_loop().create_future()
        finally:
            await runner.cleanup()


def _is_logged(error: BaseException) -> None:
    log.error("a task of the dashboard failed", exc_info=error)
