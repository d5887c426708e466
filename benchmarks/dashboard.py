"""
The page of runs: what looking costs the run and the machine, and how soon a large run is there.

A run of short tasks is carried out with pages that follow it and without, in turns; its processor
time and that of the page's server are compared. Pages are HTTP clients that read events as a
browser does. Then pages are opened on a run in which nothing but its state changes, and on
simulated runs of many tasks. At last Chromium opens a run that is made up, and follows it while
1,000 of its tasks end in a second.

    python benchmarks/dashboard.py [--quick | --smallest] [--json FILE]
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from figures import Benchmark, Figure, at_least, at_most
from page_in_browser import MadeUpServer, browsing, document, drawn_after, frames, missing, template
from page_in_browser import serving as serving_made_up
from scipy import stats

LOOKED_AT = 50
"""Pages that are open at once."""

SHORT = """
[campaign]
name = "short"
command = "true"
[parameters]
i = {{ from = 1, to = {n}, step = 1 }}
"""
STILL = """
[campaign]
name = "still"
command = "sleep {n}"
"""
LARGE = SHORT.replace("short", "large") + "[task]\nruntime = 60\n"
SITES = """
[site.grid]
kind = "local"
processors = 64
speed = 1.0
unit_price = "0.1 EUR/core-hour"
"""


class Pages:
    """The server of the page in a process of its own, and pages that follow one run."""

    def __init__(self, process: subprocess.Popen[str], address: str, token: str) -> None:
        self._process = process
        self.client = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"},
            timeout=120,
            limits=httpx.Limits(max_connections=LOOKED_AT + 5),
        )
        self.events = 0

    def processor_time(self) -> float:
        """Return the processor time of the server so far, seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def following(self, run: str, pages: int) -> Iterator[None]:
        """Open pages of a run; they read events until the end of the block."""
        stop = threading.Event()

        def follow() -> None:
            version = self.client.get(f"/api/runs/{run}").json()["version"]
            with self.client.stream("GET", f"/api/runs/{run}/events?version={version}") as events:
                for line in events.iter_lines():
                    self.events += line.startswith("event:")
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=follow, daemon=True) for _ in range(pages)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()


@contextmanager
def serving(folder: Path) -> Iterator[Pages]:
    """Serve the runs of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bursar", "dashboard", "--no-browser", "--listen", "127.0.0.1:0"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline() + process.stderr.readline()
        address = re.findall(r"(http://\S+) shows", said)[0]
        code = re.findall(r"with this code: (\w+)", said)[0]
        shell = httpx.post(address + "open", data={"code": code}).text
        yield Pages(process, address, re.findall(r'"token": "([^"]+)"', shell)[0])
    finally:
        process.terminate()
        process.wait()


def bursar(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command there."""
    return subprocess.Popen(
        [sys.executable, "-m", "bursar", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BURSAR_HISTORY": "none"},
    )


def carried_out(folder: Path, name: str, pages: Pages | None, looked: int) -> tuple[float, float]:
    """Return seconds and processor time of a run, its workers and tasks included."""
    began, before = time.perf_counter(), os.times()
    process = bursar(folder, "run", "short.toml", "--name", name, "--fresh")
    with ExitStack() as open_pages:
        if pages is not None:
            until_there(pages, name)
            open_pages.enter_context(pages.following(name, looked))
        assert process.wait() == 0
    after = os.times()
    used = after.children_user + after.children_system
    return time.perf_counter() - began, used - before.children_user - before.children_system


def until_there(pages: Pages, run: str) -> None:
    """Wait until a run can be looked at."""
    for _ in range(600):
        if pages.client.get(f"/api/runs/{run}").status_code == 200:
            return
        time.sleep(0.05)
    raise TimeoutError(f"run {run} did not begin")


def main() -> None:
    """Measure a run that is looked at, then pages of a run that stands, then large runs."""
    bench = Benchmark(__file__, __doc__)
    tasks, rounds = bench.of((5_000, 12), (2_000, 3), (100, 1))
    seconds = bench.of(30.0, 15.0, 2.0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "runs").mkdir()
        (folder / "short.toml").write_text(SHORT.format(n=tasks))
        (folder / "still.toml").write_text(STILL.format(n=3600))
        (folder / "sites.toml").write_text(SITES)
        with serving(folder) as pages:
            looked_at(bench, folder, pages, tasks, rounds)
            standing(bench, folder, pages, seconds)
            for number in bench.of((10_000, 100_000), (10_000,), (500,)):
                large(bench, folder, pages, number)
    if needed := missing():
        bench.skip(f"the page in a browser: there is no {needed}")
    else:
        small = template()
        for number in bench.of((10_000, 100_000), (10_000, 100_000), (1_000,)):
            in_a_browser(bench, small, number, *bench.of((7, 20.0), (3, 5.0), (1, 1.0)))
    bench.write()


def looked_at(bench: Benchmark, folder: Path, pages: Pages, tasks: int, rounds: int) -> None:
    """Compare runs with and without pages that follow them."""
    table = bench.table(
        f"a run of {tasks:,} short tasks", "pages", "s", "its processor time, s", "the server's, s"
    )
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: [], LOOKED_AT: []}
    for number in range(rounds):
        # Every other round the other way round, so that a load that grows falls on both alike.
        for looked in list(found)[:: -1 if number % 2 else 1]:
            made = found[looked]
            before = pages.processor_time()
            took, used = carried_out(
                folder, f"r{number}-{looked}", pages if looked else None, looked
            )
            made.append((took, used))
            served = pages.processor_time() - before
            table.add(f"round {number + 1}, {looked}", took, used, served)
    for looked in (1, LOOKED_AT):
        pairs = zip(found[looked], found[0], strict=True)
        ratios = [math.log(one[1] / other[1]) for one, other in pairs]
        mean = statistics.mean(ratios)
        figures = [at_most(f"its processor time with {looked} / without", math.exp(mean), 1.03)]
        if rounds > 1:
            spread = statistics.stdev(ratios) / math.sqrt(rounds)
            half = stats.t.ppf(0.975, rounds - 1) * spread
            figures += [
                Figure("the same, 95 % interval from", math.exp(mean - half), ""),
                Figure("the same, 95 % interval to", math.exp(mean + half), ""),
            ]
        bench.figures(f"a run of {tasks:,} short tasks that {looked} pages follow", figures)


def standing(bench: Benchmark, folder: Path, pages: Pages, seconds: float) -> None:
    """Measure the server with pages open on a run whose tasks take an hour."""
    process = bursar(folder, "run", "still.toml", "--name", "still", "--fresh")
    until_there(pages, "still")
    with pages.following("still", LOOKED_AT):
        time.sleep(2.0)
        before, events = pages.processor_time(), pages.events
        time.sleep(seconds)
        used, heard = pages.processor_time() - before, pages.events - events
    process.terminate()
    process.wait()
    bench.figures(
        f"{LOOKED_AT} pages open on a run that stands",
        [
            at_most("part of a processor for the server", used / seconds, 0.05),
            at_most("events a page and second", heard / seconds / LOOKED_AT, 4.0),
        ],
    )


def large(bench: Benchmark, folder: Path, pages: Pages, tasks: int) -> None:
    """Measure how soon a large run's data are there, at first and again."""
    (folder / "large.toml").write_text(LARGE.format(n=tasks))
    name = f"large-{tasks}"
    made = bursar(
        folder,
        "simulate",
        "large.toml",
        "--sites",
        "sites.toml",
        "--processors",
        "64",
        "--name",
        name,
    )
    assert made.wait() == 0
    table = bench.table(
        f"a run of {tasks:,} tasks that has ended", "what", "s", "MB", "MB as it is sent"
    )
    for what in ("the run, the first time", "the run, again"):
        began = time.perf_counter()
        answer = pages.client.get(f"/api/runs/{name}")
        took = time.perf_counter() - began
        sent = answer.num_bytes_downloaded
        table.add(what, took, len(answer.content) / 1e6, sent / 1e6)
        assert answer.json()["summary"]["tasks"] == tasks
    for what, query in (("100 rows of tasks", ""), ("100 rows, sorted", "&sort=runtime_s")):
        began = time.perf_counter()
        answer = pages.client.get(f"/api/runs/{name}/tasks?limit=100{query}")
        took = time.perf_counter() - began
        assert len(json.loads(answer.content)["rows"]) == 100
        table.add(what, took, len(answer.content) / 1e6, answer.num_bytes_downloaded / 1e6)


def in_a_browser(
    bench: Benchmark, small: dict[str, Any], tasks: int, rounds: int, seconds: float
) -> None:
    """Measure when the page of a run is on screen, and how smoothly it follows the run."""
    with browsing() as driver:
        with serving_made_up(MadeUpServer(document(small, tasks, tasks), 0)) as address:
            taken = [drawn_after(driver, address, "/runs/busy") for _ in range(rounds)]
        with serving_made_up(MadeUpServer(document(small, tasks, tasks // 2), 1000)) as address:
            drawn_after(driver, address, "/runs/busy")
            rate, gap = frames(driver, seconds)
    bench.figures(
        f"the page of a run of {tasks:,} tasks in Chromium",
        [
            at_most(
                "drawn after, median", statistics.median(taken), 3.0 if tasks > 10_000 else 1, "s"
            ),
            Figure(f"drawn after, slowest of {rounds}", max(taken), "s"),
            at_least("frames while 1,000 tasks end a second", rate, 30, "/s"),
            Figure("longest time between two frames", gap, "ms"),
        ],
    )


if __name__ == "__main__":
    main()
