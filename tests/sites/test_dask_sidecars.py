"""What runs beside Dask's workers, by real worker processes and without Dask."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar.dispatch.linux_processes import traces_of
from bursar.dispatch.wire import WireJob
from bursar.model.task import Exec, Shell, Status
from bursar.sites.dask import sidecar_registry as module
from bursar.sites.dask.sidecar import (
    DaskJobOrder,
    DaskReply,
    decode_answer,
    encode_message,
)
from bursar.sites.dask.sidecar_registry import SidecarRegistry
from bursar.sites.sidecar_process import SharedRunPaths

RUN = "run"


class Desk:
    """Benches, and orders for them."""

    def __init__(self, folder: Path) -> None:
        self.mark = secrets.token_hex(8)
        parts = [folder / part for part in ("root", "files", "work", "logs", "scratch")]
        for part in parts:
            part.mkdir()
        self._place = SharedRunPaths(*map(str, parts[:4]))
        self.benches = SidecarRegistry(str(parts[4]))
        self.scratch = parts[4]

    def order(self, *jobs: WireJob, bench: str = "", patience: float = 60.0) -> DaskJobOrder:
        """Of these jobs."""
        return DaskJobOrder(
            RUN, self.mark, module.IDENTITY, 1000, patience, bench, list(jobs), self._place, []
        )

    def execute(self, *jobs: WireJob, bench: str = "") -> DaskReply:
        """What has become of them so far."""
        return self.benches.execute(self.order(*jobs, bench=bench))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Nothing is left of it."""
    desk = Desk(tmp_path)
    yield desk
    desk.benches.clear(RUN)
    assert traces_of(desk.mark) == set()
    assert list(desk.scratch.iterdir()) == []


def job(number: int, line: str = "true", attempt: int = 1) -> WireJob:
    """Of one line of shell."""
    return WireJob(number, attempt, 1, 0.0, f"{number}-t", (Shell(line),))


def ends(answer: DaskReply) -> dict[int, Status]:
    """How each job has ended."""
    return {done.outcome.task: done.outcome.status for done in answer.done}


def test_a_long_job_holds_nobody_up(desk: Desk) -> None:
    """What waits behind it goes back, and it is waited for alone, until it is cancelled."""
    first = desk.execute(job(1, "sleep 300"), job(2), job(3))

    assert (ends(first), sorted(first.returned)) == ({}, [(2, 1), (3, 1)])
    assert desk.benches.cancel(RUN, 60.0, [(1, 1)], 0.0, "enough") == []
    second = desk.execute(bench=first.sidecar)
    assert ends(second) == {1: Status.CANCELLED}
    assert second.done[0].outcome.reason == "enough"
    assert not second.sidecar


def test_what_has_ended_is_told_while_others_run(desk: Desk) -> None:
    """An order is answered when half has ended; the next takes further jobs along."""
    answer = desk.execute(*(job(i, "sleep 0.02") for i in range(8)))
    ended = ends(answer)

    assert 4 <= len(ended) < 8
    assert answer.sidecar
    more = [job(100)]
    while answer.sidecar:
        answer = desk.execute(*more, bench=answer.sidecar)
        more = []
        ended |= ends(answer)
    assert ended == dict.fromkeys([*range(8), 100], Status.SUCCEEDED)


def test_a_job_that_is_cancelled_before_it_comes_does_not_begin(desk: Desk, tmp_path: Path) -> None:
    """Its order may come later; another attempt of it is wanted again."""
    mark = tmp_path / "began"

    assert desk.benches.cancel(RUN, 60.0, [(1, 1)], 0.0, "no") == [(1, 1)]
    assert ends(desk.execute(job(1, f"touch {mark}"))) == {1: Status.CANCELLED}
    assert not mark.exists()
    assert ends(desk.execute(job(1, attempt=2))) == {1: Status.SUCCEEDED}


def test_an_order_for_another_process_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask hands an order that was lost with its worker to the one in its place."""
    order = encode_message(desk.order(job(1)))

    monkeypatch.setattr(module, "_registry", desk.benches)
    monkeypatch.setattr(module, "IDENTITY", "another")
    assert decode_answer(module.run_jobs(order)).is_other
    assert desk.execute(bench="gone").is_other


@pytest.mark.ci
def test_a_run_that_is_not_heard_of_ends(desk: Desk) -> None:
    """With all that it runs; one that is heard of does not."""
    order = desk.order(job(1, "sleep 300"), job(2), patience=2.0)
    assert desk.benches.execute(order).sidecar

    until = time.monotonic() + 3
    while time.monotonic() < until:
        desk.benches.record_contact(RUN)
        assert traces_of(desk.mark)
        time.sleep(0.1)
    until = time.monotonic() + 60
    while traces_of(desk.mark) or any(desk.scratch.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_jobs_of_a_dead_process_are_lost(desk: Desk) -> None:
    """And the next are carried out by another one."""
    suicide = WireJob(1, 1, 1, 0.0, "1-t", (Exec(("/bin/sh", "-c", "kill -9 $PPID; sleep 300")),))

    lost = desk.execute(suicide, job(2))
    found = ends(lost)
    if lost.sidecar:
        found |= ends(desk.execute(bench=lost.sidecar))

    assert found == {1: Status.LOST, 2: Status.LOST}
    assert ends(desk.execute(job(3))) == {3: Status.SUCCEEDED}
