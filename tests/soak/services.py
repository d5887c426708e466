"""Rounds on ``bursar serve``: the service and its workers are killed while a client submits."""

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.run_lives import Start, Started, start_command
from tests.soak.campaigns import PATIENCE, count_overlaps
from tests.soak.leftovers import describe, kill_all, left_over, processes_of
from tests.soak.rounds import Findings

from bursar.dispatch.linux_processes import workers_of
from bursar.remote.client import ServiceClient
from bursar.remote.messages import Result, TaskSpec

SERVICE = """\
[service]
name = "here"
folder = "{folder}"
listen = "127.0.0.1:{port}"
[tasks]
outlives = "{outlives} s"
[site]
processors = 2
unit_price = "3600 SU/core-hour"
[market]
price_shared = true
"""
"""Two processors, one currency unit for each second of one."""


class ServiceLives:
    """
    A service of a folder, which is killed and started again.

    Parameters
    ----------
    folder
        Folder of the round; the service keeps its state in ``state`` below it.
    start
        How the command is started.
    outlives
        Seconds for which workers go on without the service.
    """

    def __init__(self, folder: Path, start: Start, outlives: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.folder = folder
        self.state = folder / "state"
        self.lives = 0
        self._start = start
        self._process: Started | None = None
        text = SERVICE.format(folder=self.state, port=self.port, outlives=outlives)
        (folder / "s.toml").write_text(text)

    def start(self) -> None:
        """Start the service; on return it takes requests."""
        self.lives += 1
        said = self.folder / f"said-{self.lives}"
        words = ["serve", "-c", "s.toml", "--json"]
        self._process = self._start(words, self.folder, {}, said)
        give_up = time.monotonic() + PATIENCE
        while "\n}" not in (said.read_text() if said.exists() else ""):
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"the service did not start: {said.read_text()[-500:]}")
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill the service."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def end(self) -> int:
        """End the service by SIGTERM; return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Kill whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def workers(self) -> list[int]:
        """Processes of the service's workers."""
        run = json.loads((self.state / "journal" / "service.json").read_bytes())["run"]
        return list(workers_of(run).values())

    def left_of(self, handle: str) -> list[str]:
        """Return paths of an instance that are not removed within some seconds."""
        give_up = time.monotonic() + 60.0
        while True:
            found = [
                os.path.join(place, name)
                for place, folders, files in os.walk(self.state)
                for name in (*folders, *files)
                if handle in name
            ]
            if not found or time.monotonic() > give_up:
                return found
            time.sleep(0.02)

    def client(self) -> ServiceClient:
        """Return a client that looks for a service that is away."""
        return ServiceClient(f"http://127.0.0.1:{self.port}", patience=PATIENCE)


class Tallied:
    """
    Tasks of an instance that say when they begin and end, outside of the service's folder.

    Parameters
    ----------
    tally
        File to which every attempt appends.
    step
        Seconds after each of the four lines of an output.
    """

    def __init__(self, tally: Path, step: float) -> None:
        self.tally = tally
        self.step = step
        self.count = 0

    @property
    def lines(self) -> list[list[str]]:
        """Words of each line of the tally: begin or end, the task's label, its process."""
        text = self.tally.read_text() if self.tally.exists() else ""
        return [line.split() for line in text.splitlines()]

    def begun(self) -> int:
        """Return how many tasks have begun at least once."""
        return len({words[1] for words in self.lines if words[0] == "begin"})

    def more(self, count: int) -> list[TaskSpec]:
        """Return so many further tasks; each is known by its label."""
        numbers = range(self.count, self.count + count)
        self.count += count
        return [
            TaskSpec(
                shell=f"echo begin {i} $$ >> {self.tally}\n"
                f"for n in 0 1 2 3; do echo {i} $n; sleep {self.step}; done > out-{i}.txt\n"
                f"echo end {i} $$ >> {self.tally}\necho $$",
                outputs=(f"out-{i}.txt",),
                label=f"{i}",
                tries=100,
            )
            for i in numbers
        ]


class Submitting(threading.Thread):
    """
    Submits tasks under one key, twice: the second time nothing may be added.

    Attributes
    ----------
    numbers
        What each of the two submissions was answered; None while there is no answer.
    """

    def __init__(self, client: ServiceClient, handle: str, tasks: list[TaskSpec], key: str) -> None:
        super().__init__()
        self._submit = lambda: client.submit(handle, tasks, key)
        self.numbers: list[list[int]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Submit, and repeat it as a client would that has missed the answer."""
        try:
            for _ in range(2):
                self.numbers.append(list(self._submit()))
        except Exception as error:
            self.error = error


class Services:
    """
    Target: ``bursar serve`` with workers of its own.

    Parameters
    ----------
    start
        How the command is started.
    """

    name = "service"

    def __init__(self, start: Start = start_command) -> None:
        self.start = start

    @contextmanager
    def up(self, folder: Path) -> Iterator[None]:
        """Nothing is shared by these rounds."""
        yield

    def strike(self, folder: Path, rng: random.Random, found: Findings) -> None:
        """Kill the service and its workers a few times; then look at everything."""
        # Most often the service comes back before its workers have given it up.
        outlives = rng.choice((1.0, *[600.0] * 7))
        service = ServiceLives(folder, self.start, outlives)
        tasks = Tallied(folder / "tally", rng.choice((0.0, 0.005, 0.02)))
        try:
            service.start()
            with service.client() as client:
                handle = client.create_instance(label="soak").id
                numbers = list(client.submit(handle, tasks.more(rng.randint(10, 40))))
                for strike in range(rng.randint(1, 4)):
                    numbers += self._strike_once(service, client, handle, tasks, rng, found, strike)
                found.tasks = tasks.count
                found.need(
                    sorted(numbers) == list(range(tasks.count)),
                    f"{tasks.count} tasks were acknowledged by numbers {numbers}",
                )
                results = list(client.results(handle))
                check_results(results, tasks, found)
                self._check_files(client, handle, tasks, found)
                self._check_money(client, results, found)
                if rng.random() < 0.5:
                    service.kill()
                    found.kills["service"] += 1
                    service.start()
                    again = list(client.results(handle))
                    found.need(again == results, "results read otherwise after another kill")
                    self._check_money(client, results, found)
                client.destroy(handle)
                left = service.left_of(handle)
                found.need(not left, f"left of a destroyed instance: {left[:5]}")
            status = service.end()
            found.need(status == 0, f"the service ended with status {status}")
            self._check_processes(service, outlives, found)
            odd = [p.name for p in service.state.rglob("*.tmp")]
            found.need(not odd, f"half-written files are left: {odd}")
            for number in range(1, service.lives + 1):
                said = (folder / f"said-{number}").read_text()
                found.need("Traceback" not in said, f"the service said: {said[-600:]}")
        finally:
            service.close()
            kill_all(processes_of(folder))

    def _strike_once(
        self,
        service: ServiceLives,
        client: ServiceClient,
        handle: str,
        tasks: Tallied,
        rng: random.Random,
        found: Findings,
        strike: int,
    ) -> Sequence[int]:
        """Kill something while more tasks are handed in; return the numbers these were given."""
        begun = rng.randint(1, max(1, tasks.count // 2))
        more = tasks.more(rng.randint(1, 30))
        submitting = Submitting(client, handle, more, f"soak-{strike}-{rng.getrandbits(32)}")
        give_up = time.monotonic() + PATIENCE
        before = rng.random() < 0.5
        if before:  # so that the strike hits the submission as well as what runs
            submitting.start()
            time.sleep(rng.uniform(0.0, 0.02))
        else:
            while tasks.begun() < begun and time.monotonic() < give_up:
                time.sleep(0.005)
        what = rng.random()
        killed = 0
        if what < 0.5 and (there := service.workers):
            killed = kill_all(rng.sample(there, rng.randint(1, len(there))))
            found.kills["worker"] += killed
        if what > 0.25 or not killed:
            service.kill()
            found.kills["service"] += 1
            time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.5))))
            service.start()
        if not before:
            submitting.start()
        submitting.join(PATIENCE)
        found.need(submitting.error is None, f"a submission failed: {submitting.error}")
        answers = submitting.numbers
        found.need(
            len(answers) == 2 and answers[0] == answers[1] and len(answers[0]) == len(more),
            f"a repeated submission was answered otherwise: {answers}",
        )
        return answers[0] if answers else []

    def _check_processes(self, service: ServiceLives, outlives: float, found: Findings) -> None:
        """Nothing is there but idle workers, which leave once they have waited for the service."""
        workers = service.workers
        busy = [pid for pid in processes_of(service.folder) if pid not in workers]
        found.need(not busy, f"processes are left: {describe(busy)}")
        if outlives > 1.0:
            kill_all(workers)
        left = left_over(service.folder, 60.0)
        found.need(not left, f"processes are left after {outlives:g} s: {describe(left)}")

    def _check_files(
        self, client: ServiceClient, handle: str, tasks: Tallied, found: Findings
    ) -> None:
        wanted = {f"out-{i}.txt": [f"{i} {n}" for n in range(4)] for i in range(tasks.count)}
        there = {file.name for file in client.files(handle)}
        found.need(there == set(wanted), f"files are missing or too many: {there ^ set(wanted)}")
        for name in sorted(there & set(wanted)):
            lines = client.read(handle, name).decode().splitlines()
            found.need(lines == wanted[name], f"output {name} is not what its task wrote: {lines}")

    def _check_money(
        self, client: ServiceClient, results: Sequence[Result], found: Findings
    ) -> None:
        account = client.account()
        found.recorded = sum(result.end - result.start for result in results)
        found.billed = account.spent / 1e6
        found.need(
            abs(found.billed - found.recorded) <= 1e-3,
            f"{found.billed} paid, results tell of {found.recorded:.6f} s",
        )
        found.need(account.held == 0, f"{account.held} is held")


def check_results(results: Sequence[Result], tasks: Tallied, found: Findings) -> None:
    """Each task has one result, from an attempt that really came to its end."""
    counted = Counter(result.task for result in results)
    found.need(
        counted == Counter(range(tasks.count)),
        f"{len(results)} results of {tasks.count} tasks: {counted.most_common(3)}",
    )
    cursors = [result.cursor for result in results]
    found.need(cursors == list(range(1, len(results) + 1)), f"cursors: {cursors[:10]}")
    wrong = [result for result in results if result.state != "succeeded"]
    found.need(not wrong, f"not succeeded: {wrong[:3]}")
    ended = {(words[1], words[2]) for words in tasks.lines if words[0] == "end"}
    for result in results:
        pair = (result.label, result.stdout.strip())
        found.need(pair in ended, f"the result of {pair} is of an attempt that did not end")
    found.repeated = sum(result.attempt - 1 for result in results)
    count_overlaps(tasks.lines, found)
    found.need(not found.overlapped, f"{found.overlapped} attempts went on beside the next one")
