"""
What every local resource manager keeps to, whatever is behind it.

A module of tests makes a :class:`Ground` for its adapter and runs each of :data:`CHECKS` on it.
Checks leave no job behind, and expect to find none.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bursar.model.errors import InputError, SiteError
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest, ResourceManager

PATIENCE = 90.0
"""
Seconds within which a real scheduler does what it was asked; far more than it takes, but for one
case: Grid Engine loses a ``qdel`` that meets a job at its very start, and repeats it after 60 s.
"""

LONGER: dict[str, Any] = {"script": "sleep 300", "seconds": 300.0}
"""A job that has not ended by itself when a scheduler repeats its cancellation."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """
    A manager, and what a check has to know of it.

    Parameters
    ----------
    manager
        With nothing in its queue.
    processors
        That it has; at least 4.
    folder
        For jobs.
    commands
        How many commands it has sent so far.
    hasten
        Makes the limit of a running job come within a second or so; None: limits of a second
        are kept as they are.
    unreachable
        While it is entered, the scheduler does not answer; None: that cannot be.
    wrong
        Whether a request for too much is refused at once, or may be held instead.
    now
        Seconds since the epoch.
    settle
        Seconds that what was ended may take to be seen.
    """

    manager: ResourceManager
    processors: int
    folder: Path
    commands: Callable[[], int]
    hasten: Callable[[str], Awaitable[None]] | None = None
    unreachable: Callable[[], AbstractContextManager[None]] | None = None
    now: Callable[[], float] = time.time
    step: float = 0.05

    def request(self, name: str, script: str = "sleep 60", **more: Any) -> JobRequest:
        """A job of one processor and a minute, but for what is said."""
        plain = JobRequest(
            name=name, processors=1, seconds=60.0, script=script, folder=str(self.folder)
        )
        return replace(plain, **more)

    async def wait(
        self, ids: Iterable[str], is_so: Callable[[JobReport], bool]
    ) -> dict[str, JobReport]:
        """Looks until all are so."""
        wanted = list(ids)
        end = self.now() + PATIENCE
        while True:
            reports = dict(await self.manager.poll(wanted))
            if all(is_so(report) for report in reports.values()):
                return reports
            assert self.now() < end, f"after {PATIENCE} s: {reports}"
            await asyncio.sleep(self.step)


def is_running(report: JobReport) -> bool:
    return report.state == "running"


def has_ended(report: JobReport) -> bool:
    return report.state == "ended"


def expect_words(error: SiteError) -> None:
    """A refusal is for good, and says something."""
    assert not error.transient
    assert len(str(error)) > 20


async def a_job_runs_to_its_end(ground: Ground) -> None:
    """A script is run, and what is said of its job is true at each step."""
    before = ground.now()
    (id,) = await ground.manager.submit(ground.request("one", "sleep 1; exit 0"))
    running = (await ground.wait([id], lambda r: r.state in ("running", "ended")))[id]
    assert running.state == "running"
    assert running.began is not None
    assert running.began >= math.floor(before)
    assert running.until is not None
    assert 55 <= running.until - running.began <= 65
    assert running.processors == 1
    assert running.ended is None
    assert running.how is None
    ended = (await ground.wait([id], has_ended))[id]
    assert ended.how == "completed"
    assert ended.began is not None
    assert ended.ended is not None
    assert 0 <= ended.ended - ended.began <= PATIENCE
    usage = (await ground.manager.usage([id]))[id]
    assert usage.processors == 1
    assert usage.how == "completed"
    assert usage.seconds == pytest.approx(ended.ended - ended.began, abs=1.0)


async def a_job_that_fails_has_failed(ground: Ground) -> None:
    """The status of the script decides."""
    (id,) = await ground.manager.submit(ground.request("bad", "exit 3"))
    assert (await ground.wait([id], has_ended))[id].how == "failed"


async def jobs_that_are_alike_know_their_number(ground: Ground) -> None:
    """An array is one submission, an id for each, in order; each is a job of its own."""
    if not ground.manager.abilities.arrays:
        pytest.skip("no arrays")
    before = ground.commands()
    # Of three jobs the second fails, so that a number taken for another shows.
    ids = await ground.manager.submit(
        ground.request("many", 'sleep 0; exit "$BURSAR_ELEMENT"', copies=3)
    )
    assert ground.commands() - before == 1
    assert len(set(ids)) == 3
    ended = await ground.wait(ids, has_ended)
    assert [ended[id].how for id in ids] == ["completed", "failed", "failed"]


async def a_job_of_an_array_is_cancelled_alone(ground: Ground) -> None:
    """What is told of one of them is not told of the others."""
    if not ground.manager.abilities.arrays:
        pytest.skip("no arrays")
    ids = await ground.manager.submit(ground.request("some", copies=3, **LONGER))
    await ground.wait(ids, is_running)
    await ground.manager.cancel([ids[1]])
    assert (await ground.wait([ids[1]], has_ended))[ids[1]].how == "cancelled"
    others = await ground.manager.poll([ids[0], ids[2]])
    assert all(is_running(report) for report in others.values())
    await ground.manager.cancel(ids)
    await ground.wait(ids, has_ended)


async def what_does_not_fit_waits(ground: Ground) -> None:
    """Of two jobs that each need most processors one waits; it starts when the other goes."""
    most = ground.processors - 1
    first, second = [
        (await ground.manager.submit(ground.request(name, processors=most)))[0]
        for name in ("first", "second")
    ]
    await ground.wait([first], is_running)
    waiting = (await ground.manager.poll([second]))[second]
    assert waiting.state == "pending"
    assert waiting.began is None
    assert waiting.reason
    state = await ground.manager.queue()
    assert state.processors == ground.processors
    assert state.free == 1
    assert [job.running for job in state.jobs if job.own] == [True, False]
    assert all(job.processors == most for job in state.jobs if job.own)
    running = next(job for job in state.jobs if job.running)
    assert running.began is not None
    assert running.seconds == pytest.approx(60)
    await ground.manager.cancel([first])
    assert (await ground.wait([second], is_running))[second].began is not None
    await ground.manager.cancel([second])
    await ground.wait([second], has_ended)


async def a_waiting_job_is_withdrawn(ground: Ground) -> None:
    """Cancelled while it waits, it never ran and took nothing."""
    ids = [
        (await ground.manager.submit(ground.request(name, processors=ground.processors)))[0]
        for name in ("holds", "waits")
    ]
    await ground.wait(ids[:1], is_running)
    await ground.manager.cancel(ids)
    reports = await ground.wait(ids, has_ended)
    assert reports[ids[1]].how == "cancelled"
    assert reports[ids[1]].began is None
    usage = await ground.manager.usage(ids)
    assert ids[1] not in usage or usage[ids[1]].processors * usage[ids[1]].seconds == 0


async def cancelling_again_changes_nothing(ground: Ground) -> None:
    """Jobs that ended are cancelled without complaint, along with those that run."""
    (id,) = await ground.manager.submit(ground.request("twice", "exit 0"))
    await ground.wait([id], has_ended)
    (other,) = await ground.manager.submit(ground.request("alive", **LONGER))
    await ground.manager.cancel([id, other])
    await ground.manager.cancel([id, other])
    reports = await ground.wait([id, other], has_ended)
    assert reports[id].how == "completed"
    assert reports[other].how == "cancelled"
    await ground.manager.cancel([])


async def a_limit_is_kept(ground: Ground) -> None:
    """Over its time a job is ended, and said to have been."""
    seconds = 60.0 if ground.hasten is not None else 1.0
    (id,) = await ground.manager.submit(ground.request("long", "sleep 50", seconds=seconds))
    await ground.wait([id], lambda r: r.state in ("running", "ended"))
    if ground.hasten is not None:
        await ground.hasten(id)
    assert (await ground.wait([id], has_ended))[id].how == "timeout"


async def a_job_waits_for_its_moment(ground: Ground) -> None:
    """With a begin it does not start before, although there is room."""
    if not ground.manager.abilities.begin:
        pytest.skip("no begins")
    begin = ground.now() + 3
    (id,) = await ground.manager.submit(ground.request("later", begin=begin))
    assert (await ground.manager.poll([id]))[id].state == "pending"
    began = (await ground.wait([id], is_running))[id].began
    assert began is not None
    assert began >= math.floor(begin) - 1e-6
    await ground.manager.cancel([id])
    await ground.wait([id], has_ended)


async def an_unknown_job_is_unknown(ground: Ground) -> None:
    """Of a job that nobody knows it is not said that it ended; others are answered."""
    (id,) = await ground.manager.submit(ground.request("known"))
    absent = str(int(id) + 4000) if id.isdecimal() else f"{id}4000"
    reports = await ground.manager.poll([absent, id])
    assert reports[absent].state == "unknown"
    assert reports[absent].how is None
    assert reports[absent].reason
    assert reports[id].state in ("pending", "running")
    assert (await ground.manager.poll([absent]))[absent].state == "unknown"
    assert absent not in await ground.manager.usage([absent])
    assert await ground.manager.poll([]) == {}
    await ground.manager.cancel([id])
    await ground.wait([id], has_ended)


async def one_command_tells_of_all(ground: Ground) -> None:
    """However many jobs there are, a poll is one command."""
    ids = []
    for number in range(4):
        ids += await ground.manager.submit(ground.request(f"poll{number}"))
    if ground.manager.abilities.arrays:
        ids += await ground.manager.submit(ground.request("polls", copies=50))
    before = ground.commands()
    reports = await ground.manager.poll(ids)
    assert ground.commands() - before == 1
    assert list(reports) == ids
    assert all(report.state in ("pending", "running") for report in reports.values())
    before = ground.commands()
    await ground.manager.cancel(ids)
    assert ground.commands() - before == 1
    await ground.wait(ids, has_ended)


async def a_start_is_estimated(ground: Ground) -> None:
    """On free processors at once; behind a job of which the limit is known, not before that."""
    if not ground.manager.abilities.start_estimates:
        pytest.skip("no estimates")
    wide = ground.request("wide", processors=ground.processors)
    soon = await ground.manager.expected_start(wide)
    assert soon is not None
    assert soon <= ground.now() + 10
    (id,) = await ground.manager.submit(wide)
    running = (await ground.wait([id], is_running))[id]
    assert running.until is not None
    later = await ground.manager.expected_start(wide)
    assert later is not None
    assert later >= running.until - 2
    assert list(await ground.manager.poll([id])) == [id]  # nothing was submitted by asking
    assert len([job for job in (await ground.manager.queue()).jobs if job.own]) == 1
    await ground.manager.cancel([id])
    await ground.wait([id], has_ended)


async def impossible_requests_are_refused(ground: Ground) -> None:
    """Nonsense is the caller's fault; too much is refused in words, or held with a reason."""
    for nonsense in (
        {"processors": 0},
        {"copies": 0},
        {"seconds": 0.0},
        {"seconds": math.inf},
    ):
        with pytest.raises(InputError):
            await ground.manager.submit(ground.request("nonsense", **nonsense))
    wide = ground.request("wide", processors=1000 * ground.processors)
    try:
        ids = await ground.manager.submit(wide)
    except SiteError as error:
        expect_words(error)
        return
    reports = await ground.wait(ids, lambda r: r.state in ("held", "ended"))
    for report in reports.values():
        assert report.reason
        assert report.how in (None, "rejected")
    await ground.manager.cancel(ids)
    await ground.wait(ids, has_ended)


async def silence_is_not_an_answer(ground: Ground) -> None:
    """Unreachable, it knows nothing of any job; later it knows all of them."""
    if ground.unreachable is None:
        pytest.skip("it is always reachable")
    (id,) = await ground.manager.submit(ground.request("lasts"))
    await ground.wait([id], is_running)
    with ground.unreachable():
        answers = await asyncio.gather(
            ground.manager.poll([id]),
            ground.manager.queue(),
            ground.manager.cancel([id]),
            ground.manager.submit(ground.request("unheard")),
            return_exceptions=True,
        )
    for answer in answers:
        assert isinstance(answer, SiteError)
        assert answer.transient
    await ground.wait([id], is_running)
    await ground.manager.cancel([id])
    await ground.wait([id], has_ended)


async def reservations_are_made_or_refused(ground: Ground) -> None:
    """Who may, keeps processors, sees them kept, and gives them back; else the reason is told."""
    manager = ground.manager
    name = "bursar-window"
    start = ground.now() + 100
    try:
        await manager.reserve(name, start, 120.0, 2)
    except SiteError as error:
        expect_words(error)
        await manager.unreserve(name)
        return
    window = next(w for w in (await manager.queue()).windows if w.name == name)
    assert window.own
    assert window.processors == 2
    assert window.start == pytest.approx(start, abs=3)
    assert 119 <= window.seconds <= 125
    with pytest.raises(SiteError):
        await manager.reserve(name, start, 120.0, 2)
    await manager.unreserve(name)
    assert not [w for w in (await manager.queue()).windows if w.name == name]
    await manager.unreserve(name)
    with pytest.raises(SiteError):
        await manager.reserve(name, start, 120.0, 1000 * ground.processors)


CHECKS: tuple[Callable[[Ground], Awaitable[None]], ...] = (
    a_job_runs_to_its_end,
    a_job_that_fails_has_failed,
    jobs_that_are_alike_know_their_number,
    a_job_of_an_array_is_cancelled_alone,
    what_does_not_fit_waits,
    a_waiting_job_is_withdrawn,
    cancelling_again_changes_nothing,
    a_limit_is_kept,
    a_job_waits_for_its_moment,
    an_unknown_job_is_unknown,
    one_command_tells_of_all,
    a_start_is_estimated,
    impossible_requests_are_refused,
    silence_is_not_an_answer,
    reservations_are_made_or_refused,
)

EACH = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
