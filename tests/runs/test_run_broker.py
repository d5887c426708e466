"""The resource broker of a run: sites that break, or say what cannot be; files that do not come."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bursar.broker.matchmaking.broker import SiteMatch
from bursar.broker.matchmaking.broker_interfaces import BrokerJob, broker_job
from bursar.broker.policy_choice import SupplyPolicy
from bursar.dispatch.journal import read_journal
from bursar.model.allocation import AllocationLoss
from bursar.model.campaign import Campaign, Retry, Workflow
from bursar.model.errors import BursarError, SiteError
from bursar.model.matching import Brokering, Matching, Replica, SiteStatus
from bursar.model.money import Refusal
from bursar.model.plan import Plan
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.task import Shell, Task
from bursar.runs.brokerage import RunBroker
from bursar.runs.campaign_run import execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.supply import ScheduledSupply
from bursar.sites.local import HeldWorkers, LocalSite
from bursar.sites.protocol import Site


class Odd(LocalSite):
    """A site that says what it is told to say."""

    said: Any = None

    def status(self, seconds: float | None = None) -> Any:
        """That, or what it raises."""
        if isinstance(self.said, Exception):
            raise self.said
        return super().status() if self.said is None else self.said


class Broken(LocalSite):
    """A site where no worker starts."""

    async def acquire(self, *_: Any, **__: Any) -> HeldWorkers:
        """It cannot."""
        raise SiteError(f"{self.facts.name}: no worker starts")


class LingeringWorkers(HeldWorkers):
    """Workers that have left a while before their processors are free."""

    async def release(self) -> None:
        """Let the workers leave, and wait."""
        await self._workers.release()
        await asyncio.sleep(1.0)
        await super().release()


class Lingering(LocalSite):
    """A site that takes its time to free processors."""

    async def acquire(self, *arguments: Any, **named: Any) -> HeldWorkers:
        """Start workers that leave before their processors are free."""
        held = await super().acquire(*arguments, **named)
        held.__class__ = LingeringWorkers
        return held


class FadingWorkers(HeldWorkers):
    """Workers that are gone for a moment before their site says so, when a file is there."""

    mark: Path
    is_gone = False

    @property
    def workers(self) -> int:
        """Return 0 from the moment on that they are gone."""
        return 0 if self.is_gone else super().workers

    async def lost(self) -> tuple[AllocationLoss, str]:
        """Wait for the file."""
        while not self.mark.exists():
            await asyncio.sleep(0.01)
        self.is_gone = True
        await asyncio.sleep(0.6)
        return "lost", "its machine went away"


class Fading(LocalSite):
    """A site whose first processors are lost when a file is there."""

    mark: Path
    has_lost = False

    async def acquire(self, *arguments: Any, **named: Any) -> HeldWorkers:
        """Start workers; the first ones are lost."""
        held = await super().acquire(*arguments, **named)
        if not self.has_lost:
            self.has_lost = True
            held.__class__ = FadingWorkers
            held.mark = self.mark  # type: ignore[attr-defined]
        return held


def campaign(*tasks: Task, backoff: float = 0.0) -> Campaign:
    """Of these tasks."""
    retry = Retry(attempts=3, backoff=backoff)
    return Campaign(name="c", workflow=Workflow(tasks), retry=retry, root=Path("/"))


def brokerage_of(
    sites: Mapping[str, Site], *tasks: Task, clock: Callable[[], float] = lambda: 0.0, **how: Any
) -> RunBroker:
    """Over these sites."""
    return RunBroker(campaign(*tasks), sites, Brokering(**how), clock=clock)


def facts(name: str, processors: int = 2, **more: Any) -> SiteFacts:
    """Of a site."""
    return SiteFacts(name=name, processors=processors, unit_price=1.0, **more)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (SiteError("s is away"), "s is away"),
        (OSError("gone"), "s: OSError: gone"),
        ({"free": 3}, "s answers garbage: {'free': 3}"),
    ],
)
def test_a_site_that_cannot_say_how_it_is_fails_and_others_go_on(said: Any, why: str) -> None:
    sites = {name: Odd(facts(name)) for name in ("s", "t")}
    task = Task(id="x")
    brokerage = brokerage_of(sites, task)
    for name in sites:
        brokerage.directory.publish(brokerage.status(name))
    sites["s"].said = said

    with pytest.raises(SiteError, match=why):
        brokerage.status("s")
    for number in range(3):
        match = brokerage.broker.choose(broker_job(number, task))
        assert not isinstance(match, Refusal)
        assert match.site == "t"


def test_a_site_of_ours_tells_of_our_queue_and_a_shared_one_of_its_own() -> None:
    """The shared one is taken to have said so just before: what is sent now it cannot count."""
    shared = Odd(facts("s", background=BackgroundLoad(trace="log.swf")))
    shared.said = SiteStatus(site="s", at=0.0, free_processors=1, waiting=7, traversal_time=9.0)
    ours = Odd(facts("o"))
    brokerage = brokerage_of({"s": shared, "o": ours}, Task(id="x"), clock=lambda: 5.0)
    brokerage._elements["o"].submit(0, 1, 30.0, 5.0)
    brokerage._elements["o"].began(0, 5.0)

    assert brokerage.status("o").free_processors == 1
    assert brokerage.status("o").at == 5.0
    assert replace(brokerage.status("s"), at=0.0) == shared.said
    assert 4.999 < brokerage.status("s").at < 5.0


def test_what_the_index_heard_long_ago_is_forgotten() -> None:
    now = 0.0
    brokerage = brokerage_of({"s": Odd(facts("s"))}, Task(id="x"), clock=lambda: now, refresh=1.0)
    brokerage.directory.publish(brokerage.status("s"))
    assert set(brokerage.directory.read()) == {"s"}

    now = 100.0
    assert set(brokerage.directory.read()) == set()


def test_files_go_to_another_site_where_they_could_not_be_brought_to_one() -> None:
    """And again to the first where they could be brought to none."""
    sites = {name: LocalSite(facts(name)) for name in "ab"}
    task = Task(id="t", data=("f",))
    copies = [Replica(name="f", site="", url="http://x/f", size=5)]
    brokerage = RunBroker(
        campaign(task), sites, Brokering(), clock=lambda: 0.0, copies=lambda name: copies
    )
    for name in sites:
        brokerage.directory.publish(brokerage.status(name))
    chosen = []
    for _ in range(2):
        match = brokerage.broker.choose(broker_job(0, task))
        assert not isinstance(match, Refusal)
        chosen.append(match.site)
        brokerage._files.failed(("f",), match.site)  # type: ignore[union-attr]

    assert sorted(chosen) == ["a", "b"]
    assert not isinstance(brokerage.broker.choose(broker_job(0, task)), Refusal)


def carried_out(
    tmp_path: Path,
    sites: dict[str, Site],
    *tasks: Task,
    change: Callable[[RunBroker], None] = lambda brokerage: None,
    backoff: float = 0.0,
    **how: Any,
) -> dict[str, Any]:
    """The key figures of a run over sites of the test's own."""
    wanted = campaign(*tasks, backoff=backoff)
    settings = Brokering(refresh=0.2, **how)
    all_facts = tuple(site.facts for site in sites.values())
    plan = Plan.on_the_way("SU", "broker")
    policy = SupplyPolicy(kind="matched", brokering=settings)
    with RunFolder.create(
        tmp_path,
        wanted,
        all_facts,
        argv=[],
        name="r",
        policy=policy,
    ) as folder:
        write_plan(folder, {}, plan)

    brokerage = RunBroker(wanted, sites, settings, clock=time.monotonic)
    change(brokerage)
    return execute_campaign(
        folder,
        wanted,
        plan,
        environment=RunEnvironment(
            sites=sites, supply=ScheduledSupply(brokerage.scheduler), lifespan=brokerage.running
        ),
    )


def messages(tmp_path: Path) -> list[str]:
    """What the run said."""
    events = read_journal(tmp_path / "r" / "journal.sqlite").events
    return [event.text for event in events if event.kind == "message"]


@pytest.mark.parametrize("rank_by", ["site", "index"])
def test_a_site_where_no_worker_starts_is_left_out(tmp_path: Path, rank_by: str) -> None:
    sites: dict[str, Site] = {"good": LocalSite(facts("good")), "bad": Broken(facts("bad", 8))}
    tasks = [Task(id=f"t{i}", steps=(Shell("true"),), runtime=0.1) for i in range(12)]

    told = carried_out(tmp_path, sites, *tasks, rank_by=rank_by)

    assert told["succeeded"] == 12
    assert "bad is left out: bad: no worker starts" in messages(tmp_path)


def test_jobs_that_name_a_site_where_no_worker_starts_are_left_undone(tmp_path: Path) -> None:
    sites: dict[str, Site] = {"good": LocalSite(facts("good")), "bad": Broken(facts("bad"))}
    named = Task(id="t", steps=(Shell("true"),), matching=Matching(site="bad"))

    told = carried_out(tmp_path, sites, named, Task(id="u", steps=(Shell("true"),)))

    assert (told["state"], told["exit_status"]) == ("goal-stopped", 4)
    assert told["succeeded"] == 1
    assert messages(tmp_path)[-1] == "no site for t: bad failed 3 times in a row"


def test_what_fails_while_jobs_are_brought_ends_the_run(tmp_path: Path) -> None:
    """It would otherwise be lost in a callback, and the run would never end."""
    tasks = [
        Task(id=id, steps=(Shell("true"),), after=after) for id, after in (("t", ()), ("u", ("t",)))
    ]

    def break_it(brokerage: RunBroker) -> None:
        choose = brokerage.broker.choose

        def choose_one(job: BrokerJob) -> SiteMatch | Refusal:
            if job.number == 1:
                raise SiteError("the broker is broken")
            return choose(job)

        brokerage.broker.choose = choose_one  # type: ignore[method-assign]

    with pytest.raises(BursarError, match="the broker is broken"):
        carried_out(tmp_path, {"s": LocalSite(facts("s"))}, *tasks, change=break_it)


def test_a_run_goes_on_while_its_last_processors_are_given_back(tmp_path: Path) -> None:
    """Nothing else is held meanwhile: the task that failed waits for its second attempt."""
    once = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"

    told = carried_out(
        tmp_path,
        {"s": Lingering(facts("s"))},
        Task(id="t", steps=(Shell(once),)),
        backoff=0.7,
    )

    assert (told["state"], told["succeeded"]) == ("finished", 1)


def test_a_run_goes_on_when_a_loss_is_seen_before_it_is_told(tmp_path: Path) -> None:
    """A look at the workers falls between the end of the last one and the site's word of it."""
    site = Fading(facts("s"))
    site.mark = tmp_path / "mark"
    line = f"touch {site.mark}; exec sleep 1.5"

    told = carried_out(tmp_path, {"s": site}, Task(id="t", steps=(Shell(line),)))

    assert (told["state"], told["succeeded"]) == ("finished", 1)
