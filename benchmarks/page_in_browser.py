"""
Chromium without a window on the page of a run that is made up, so that its rate can be chosen.

The documents' form is taken from a real run of this machine. Drawn is the page when the frame with
the schedule is on screen. Frames are those that the browser shows while tasks end, at most 60 a
second.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

import bursar
from bursar.dashboard.run_feed import frame
from bursar.dashboard.run_page import RunPage
from bursar.page.page_files import HEADERS, page_files, shell
from bursar.runs.folder import RunFolder

LANES = 256
PERIOD = 0.5  # seconds between two events, as the real feed has them
KINDS = 7

WATCH = """
(() => {
  const look = () => {
    const canvas = document.querySelector("#gantt canvas");
    if (canvas && canvas.width !== 300 && canvas.clientHeight > 0)
      requestAnimationFrame(() => { window.drawnAt = performance.now(); });
    else requestAnimationFrame(look);
  };
  look();
})();
"""
"""Notes when the frame after the one with the schedule begins, ms since the page was asked for."""

COUNT = """
const done = arguments[1], times = [];
const note = (now) => {
  times.push(now);
  if (now - times[0] < arguments[0] * 1000) requestAnimationFrame(note);
  else done(times);
};
requestAnimationFrame(note);
"""
"""Times of all frames for so many seconds, ms."""


def template() -> dict[str, Any]:
    """Return the page of a small real run."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = tuple(bursar.Task(id=f"t{i}", runtime=0.01) for i in range(20))
        goal = bursar.Goal(deadline=3600.0, budget=100.0)
        campaign = bursar.Campaign(name="made up", workflow=bursar.Workflow(tasks), goal=goal)
        bursar.run(campaign, runs=Path(folder), name="busy", history="none")
        page = RunPage(RunFolder.open(Path(folder), "busy"))
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(page.document()))
        return found


def bars(first: int, count: int, begin: float, seconds: random.Random) -> list[list[Any]]:
    """Return bars of tasks from a number on, in lanes that they fill one after the other."""
    ends = [begin] * LANES
    made = []
    for task in range(first, first + count):
        lane = task % LANES
        start = ends[lane]
        ends[lane] = start + 5 + 20 * seconds.random()
        status = 1 if task % 500 == 7 else 0
        made.append([lane, round(start, 3), round(ends[lane], 3), 1, task % KINDS, status, task])
    return made


def document(small: dict[str, Any], tasks: int, ended: int) -> dict[str, Any]:
    """Return the page of a run that goes on, of so many tasks of which some have ended."""
    seconds = random.Random(1)
    (site,) = small["sites"][:1]
    planned, actual = bars(0, tasks, 0.0, seconds), bars(0, ended, 2.0, seconds)
    end = max((bar[2] for bar in actual), default=0.0)
    summary = small["summary"] | {
        "run": "busy", "state": "running", "tasks": tasks, "succeeded": ended,
        "not_run": tasks - ended, "makespan_s": None, "deadline_met": None, "finished": None,
    }  # fmt: skip
    return small | {
        "summary": summary,
        "kinds": [f"kind-{i}" for i in range(KINDS)],
        "ids": [f"task-{i:06}" for i in range(tasks)],
        "planned": {site: planned},
        "actual": {site: actual},
        "processors": [LANES],
        "money": [[end * i / 1000, i / 10, 3.0] for i in range(1000)],
        "end": end,
        "version": ended,
        "live": True,
        "running": [],
    }


class MadeUpServer:
    """
    Answers as the dashboard's server does, for one run that is made up.

    Parameters
    ----------
    page
        The run's document.
    rate
        Tasks that end in a second while the page looks.
    """

    def __init__(self, page: dict[str, Any], rate: int) -> None:
        self.page = page
        self.rate = rate
        self._body = msgspec.json.encode(page)

    def application(self) -> web.Application:
        """Return the application of aiohttp."""
        application = web.Application(middlewares=[self._with_headers])
        application.add_routes(
            [
                web.get("/", self._shell),
                web.get("/page/{name}", self._file),
                web.get("/api/runs", self._runs),
                web.get("/api/runs/events", self._silence),
                web.get("/api/runs/busy", self._document),
                web.get("/api/runs/busy/events", self._events),
                web.get("/api/runs/busy/tasks", self._tasks),
            ]
        )
        return application

    @web.middleware
    async def _with_headers(self, request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _shell(self, request: web.Request) -> web.Response:
        text = shell({"kind": "local", "token": "x"})
        return web.Response(text=text, content_type="text/html")

    async def _file(self, request: web.Request) -> web.Response:
        file = page_files()[request.match_info["name"]]
        return web.Response(body=file.content, content_type=file.kind, charset="utf-8")

    async def _runs(self, request: web.Request) -> web.Response:
        return web.json_response({"folder": "/runs", "runs": []})

    async def _silence(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(frame("hello", {}))
        await asyncio.sleep(3600)
        return response

    async def _document(self, request: web.Request) -> web.Response:
        response = web.Response(body=self._body, content_type="application/json")
        response.enable_compression()
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        version, seconds = self.page["version"], random.Random(2)
        await response.write(frame("hello", {"version": version, "live": True}))
        number, total, end = version, len(self.page["ids"]), self.page["end"]
        (site,) = self.page["actual"]
        with contextlib.suppress(ConnectionError):
            while self.rate:
                many = int(self.rate * PERIOD)
                # Attempts beyond the last task are repeated ones of the first tasks.
                made = [[*bar[:-1], bar[-1] % total] for bar in bars(number, many, end, seconds)]
                number, end = number + many, max([end, *(bar[2] for bar in made)])
                running = [[(number + i) % total, end, site, 1] for i in range(LANES)]
                told = [
                    ("running", {"rows": running}),
                    ("ended", {"sites": self.page["sites"], "kinds": self.page["kinds"],
                               "processors": [LANES], "end": end, "bars": {site: made}}),
                    ("money", {"points": [[end, number / 100, 3.0]], "end": end,
                               "leases": self.page["leases"]}),
                    ("snapshot", self._snapshot(number, total, end)),
                ]  # fmt: skip
                for name, data in told:
                    await response.write(frame(name, data, number))
                await asyncio.sleep(PERIOD)
            await asyncio.sleep(3600)
        return response

    def _snapshot(self, ended: int, total: int, elapsed: float) -> dict[str, Any]:
        (site,) = self.page["actual"]
        return {
            "campaign": "made up", "elapsed": elapsed, "total": total, "succeeded": ended,
            "running": LANES, "waiting": max(0, total - ended - LANES), "failed": 0, "skipped": 0,
            "spent": ended / 100, "held": 3.0, "budget": 100.0, "currency": "SU",
            "predicted_finish": 3000.0, "current_finish": 3100.0, "deadline": 3600.0,
            "follows_plan": True, "forecast": None,
            "sites": [{"name": site, "processors": LANES, "busy": LANES, "running": LANES,
                       "asked": 0, "spent": ended / 100}],
        }  # fmt: skip

    async def _tasks(self, request: web.Request) -> web.Response:
        offset, limit = (int(request.query.get(name, "100")) for name in ("offset", "limit"))
        columns = ["number", "task", "name", "status", "attempts", "site", "start_s", "runtime_s"]
        total = len(self.page["ids"])
        rows = [
            [i, f"task-{i:06}", f"kind-{i % KINDS}", "succeeded", 1, "here", float(i), 5.0]
            for i in range(offset, min(offset + limit, total))
        ]
        return web.json_response(
            {"total": total, "matched": total, "columns": columns, "rows": rows}
        )


@contextlib.contextmanager
def serving(server: MadeUpServer) -> Iterator[str]:
    """Serve in a thread and yield the address."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), [""]

    async def serve() -> None:
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address[0] = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        ready.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await runner.cleanup()

    work = loop.create_task(serve())

    def go() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(work)
        loop.close()

    thread = threading.Thread(target=go)
    thread.start()
    ready.wait()
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(work.cancel)
        thread.join()


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Yield a browser with nothing in its cache."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for one in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                    "--no-first-run", "--disable-background-networking", "--disable-sync",
                    "--disable-component-update", f"--user-data-dir={profile}",
                    "--window-size=1400,1000"):  # fmt: skip
            options.add_argument(one)
        driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        try:
            yield driver
        finally:
            driver.quit()


def drawn_after(driver: Any, address: str, view: str) -> float:
    """Return after how many seconds the schedule is on screen, the page being opened anew."""
    driver.get("about:blank")
    driver.get(f"{address}#{view}")
    milliseconds: float = driver.execute_async_script(
        """
        const done = arguments[0];
        const look = () => window.drawnAt ? done(window.drawnAt) : setTimeout(look, 20);
        look();
        """
    )
    return milliseconds / 1000


def frames(driver: Any, seconds: float) -> tuple[float, float]:
    """Return frames a second while the page follows the run, and the longest gap, ms."""
    shown = "return document.getElementById('figures').innerText"
    before = driver.execute_script(shown)
    times: list[float] = driver.execute_async_script(COUNT, seconds)
    if driver.execute_script(shown) == before:
        raise RuntimeError("the page does not follow the run")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return 1000 * len(gaps) / sum(gaps), max(gaps)


def missing() -> str:
    """Return what is needed for a browser and is not there; empty: nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium"
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return " and ".join(programs)
