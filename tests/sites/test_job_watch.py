"""Jobs that are watched, by one question for all of them; on virtual time."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobReport
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.job_watch import FORGOTTEN, LATEST, SOONEST, URGENT, JobWatch


class Scheduler:
    """Knows of jobs what it is told, and notes when it was asked for which."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.reports: dict[str, JobReport] = {}
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.words = ""  # when it does not answer
        self._takes = takes

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        self.asked.append((asyncio.get_running_loop().time(), tuple(ids)))
        await asyncio.sleep(self._takes)
        if self.words:
            raise SiteError(self.words, transient=True)
        return {id: self.reports[id] for id in ids if id in self.reports}

    def says(self, id: str, state: Any, **more: Any) -> None:
        self.reports[id] = JobReport(id=id, state=state, **more)


class Listener:
    """What was heard of jobs, and said to people."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.heard: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.watch = JobWatch(scheduler, self.said.append)  # type: ignore[arg-type]

    def add(self, *jobs: str) -> None:
        for job in jobs:
            self.watch.add(job, lambda report: self.heard.append((report.id, report.state)))


def run(work: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


async def watched(listener: Listener, seconds: float) -> None:
    """Watches for a while."""
    task = asyncio.create_task(listener.watch.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    try:
        async with asyncio.timeout(1.0):
            await task
    except asyncio.CancelledError:
        return
    raise AssertionError("its cancellation was lost")


def test_one_question_for_any_number_of_jobs() -> None:
    """A hundred jobs, handed in within a moment: they are asked for together."""

    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        for i in range(100):
            scheduler.says(f"{i}", "running")
        listener.add(*scheduler.reports)
        await watched(listener, SOONEST / 2)
        assert [len(ids) for _, ids in scheduler.asked] == [100]
        assert len(listener.heard) == 100

    run(main())


def test_a_burst_of_submissions_is_no_burst_of_questions() -> None:
    """A job every 10 ms for 2 s, of a scheduler that takes 50 ms: asked a tenth of the time."""

    async def main() -> None:
        scheduler = Scheduler(takes=0.05)
        listener = Listener(scheduler)

        async def hand_in() -> None:
            for i in range(200):
                listener.add(f"{i}")
                await asyncio.sleep(0.01)

        handing = asyncio.create_task(hand_in())
        await watched(listener, 2.0)
        await handing
        assert len(scheduler.asked) <= 2.0 / 0.5 + 1

    run(main())


def test_only_news_is_told_and_when_calm_it_is_asked_rarely() -> None:
    """In ten minutes of calm about once in LATEST; a change is told once, and asked for soon."""

    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        scheduler.says("1", "pending")
        listener.add("1")
        loop = asyncio.get_running_loop()
        loop.call_later(600.0, scheduler.says, "1", "running")
        await watched(listener, 600.0 + LATEST + 1)
        assert listener.heard == [("1", "pending"), ("1", "running")]
        calm = [at for at, _ in scheduler.asked if 100 < at < 600]
        assert len(calm) <= 500 / LATEST + 1
        after = [at for at, _ in scheduler.asked if at > 600]
        assert after[1] - after[0] <= 2 * SOONEST

    run(main())


def test_a_scheduler_that_does_not_answer_is_spoken_of_once() -> None:
    """And once more when it answers again; nothing of its jobs is believed meanwhile."""

    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        scheduler.says("1", "running")
        listener.add("1")
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, setattr, scheduler, "words", "Unable to contact slurm controller")
        loop.call_later(300.0, setattr, scheduler, "words", "")
        await watched(listener, 400.0)
        assert listener.heard == [("1", "running")]
        assert listener.said == [
            "Unable to contact slurm controller; asked again until it answers",
            "the scheduler answers again",
        ]

    run(main())


def test_what_nobody_knows_of_for_long_is_gone() -> None:
    """Not at once: a record may come late. It is told with a reason."""

    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        reasons: list[str] = []
        listener.watch.add("1", lambda report: reasons.append(report.reason))
        task = asyncio.create_task(listener.watch.run())
        await asyncio.sleep(FORGOTTEN - 1)
        assert reasons == []
        await asyncio.sleep(2 * LATEST)
        assert reasons == ["the scheduler does not know it any more"]
        task.cancel()

    run(main())


def test_silence_of_the_scheduler_makes_no_job_forgotten() -> None:
    """Unknown for a moment before it stops answering, and for a moment after it starts again."""

    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        listener.add("1")
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, setattr, scheduler, "words", "down")
        loop.call_later(2 * FORGOTTEN, setattr, scheduler, "words", "")
        loop.call_later(2 * FORGOTTEN + LATEST + 5, scheduler.says, "1", "running")
        await watched(listener, 2 * FORGOTTEN + 3 * LATEST)
        assert listener.heard == [("1", "running")]

    run(main())


def test_a_job_that_is_dropped_while_it_is_asked_for_is_not_told() -> None:
    async def main() -> None:
        scheduler = Scheduler(takes=1.0)
        listener = Listener(scheduler)
        scheduler.says("1", "running")
        scheduler.says("2", "running")
        listener.add("1", "2")
        asyncio.get_running_loop().call_later(0.5, listener.watch.drop, "1")
        await watched(listener, 2.0)
        assert listener.heard == [("2", "running")]
        assert listener.watch.jobs == ("2",)

    run(main())


def test_a_loss_is_looked_into_at_once() -> None:
    """In the calm of ten minutes, and of a scheduler that takes 3 s: nobody waits 27 s for it."""

    async def main(takes: float, moment: float) -> None:
        scheduler = Scheduler(takes=takes)
        listener = Listener(scheduler)
        scheduler.says("1", "running")
        listener.add("1")
        loop = asyncio.get_running_loop()
        loop.call_later(moment, scheduler.says, "1", "ended")
        loop.call_later(moment, listener.watch.doubt, "1")
        heard_at: list[float] = []
        listener.watch._listeners["1"] = lambda report: heard_at.append(loop.time())
        await watched(listener, moment + 20.0)
        assert heard_at[-1] - moment <= URGENT + 2 * takes  # a look may be under way already

    for takes in (0.01, 0.5, 3.0):
        for moment in (30.0, 31.3, 36.7, 600.0):
            run(main(takes, moment))


def test_a_job_that_is_said_to_run_for_a_moment_more_is_looked_at_again() -> None:
    """A cancelled job is said to run until all of it has ended, here for a second."""

    async def main() -> None:
        scheduler = Scheduler(takes=1.0)
        listener = Listener(scheduler)
        scheduler.says("1", "running")
        listener.add("1")
        loop = asyncio.get_running_loop()
        loop.call_later(100.0, listener.watch.doubt, "1")
        loop.call_later(101.0, scheduler.says, "1", "ended")
        await watched(listener, 105.0)
        assert listener.heard == [("1", "running"), ("1", "ended")]

    run(main())


def test_losses_without_end_are_no_questions_without_end() -> None:
    """A worker is lost every second for an hour: a scheduler that takes 2 s is left in peace."""

    async def main() -> None:
        scheduler = Scheduler(takes=2.0)
        listener = Listener(scheduler)
        scheduler.says("1", "running")
        listener.add("1")
        loop = asyncio.get_running_loop()
        for second in range(3600):
            loop.call_later(second, listener.watch.doubt, "1")
        await watched(listener, 3600.0)
        # A tenth of the time, and what is owed at the most.
        assert len(scheduler.asked) * 2.0 <= 3600.0 / 10 + 20.0

    run(main())


def test_a_loss_of_a_job_that_nobody_watches_is_ignored() -> None:
    async def main() -> None:
        scheduler = Scheduler()
        listener = Listener(scheduler)
        listener.add("1")
        await listener.watch.poll()
        listener.watch.drop("1")
        listener.watch.doubt("1")
        listener.watch.doubt("")
        await watched(listener, 10.0)
        assert len(scheduler.asked) == 1

    run(main())


def test_it_can_be_cancelled_at_any_moment() -> None:
    """Also when a time-out and news come at that very moment: no cancellation is swallowed."""

    async def main(moment: float) -> None:
        scheduler = Scheduler(takes=0.05)
        listener = Listener(scheduler)
        listener.add("1")
        loop = asyncio.get_running_loop()
        for i in range(1, 60):
            loop.call_later(i * 0.1, listener.watch.poll_soon)
            loop.call_later(i * 0.15, listener.watch.doubt, "1")
        await watched(listener, moment)

    for step in range(1, 40):
        run(main(step * 0.05))
