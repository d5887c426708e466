"""
Match jobs to sites one by one, and start each once its files are there (the broker and the job
submission service of Cavalieri et al. 2003).
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import msgspec

from bursar.broker.decision_reasons import DECISION, PlacementDecision, SiteDecision
from bursar.broker.dynamic_scheduler import Ended, ResumeState, SchedulerEvent, release_children
from bursar.broker.held_pilots import MOST_FAILURES, SiteQueue
from bursar.broker.matchmaking.broker import ResourceBroker, SiteMatch
from bursar.broker.matchmaking.broker_interfaces import BrokerJob, broker_job
from bursar.cluster.element import ComputingElement
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Retry, Workflow
from bursar.model.errors import InputError
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status

# A clock gives one time to all that is decided together.


class FreezableClock:
    """
    A clock that can be stopped at a fixed time.

    To match a burst of jobs takes real time. Were each job matched at a later moment than the
    one before, those that begin after all of them are matched would seem to be late, and every
    site would work out its queue anew for every job.

    Parameters
    ----------
    clock
        Underlying clock, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: float | None = None
        self._times = 0

    @property
    def number(self) -> int | None:
        """Number of the present standstill; None while the clock runs."""
        return None if self._held is None else self._times

    def __call__(self) -> float:
        """Return the present time or, while frozen, the frozen time, seconds."""
        return self._clock() if self._held is None else self._held

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop the clock while the context lasts; an inner context changes nothing."""
        if self._held is not None:
            yield
            return
        self._held = self._clock()
        self._times += 1
        try:
            yield
        finally:
            self._held = None


_SITES_LOGGED = 8
"""Sites listed in a journalled decision, at most: the best ones."""


class FileStaging(Protocol):
    """Moves the files of jobs between the sites' storages."""

    def bring(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """
        Bring the files that a task reads to a site.

        Parameters
        ----------
        done
            Called when all files are there, with an empty text, or with the reason why they cannot
            be.
        """

    def keep(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """Keep and register the files that a successful task is to register at its site."""

    def release(self, task: int) -> None:
        """Release the files of a task that needs none any more."""


class BrokeredScheduler:
    """
    Sends each job to the site that the resource broker chooses.

    A job is matched once those before it have ended; its files then come to the site, and it
    joins the queue there. The processors of a site that is ours alone are held while its queue
    has jobs; at a shared one each job gets its own, when that site's scheduler lets it.

    Parameters
    ----------
    elements
        Queues of the sites, by name, which report to the information index.
    choice
        Name of the choice rule, for the journal.
    moment
        Clock of broker and elements; stands still while jobs are matched.
    staging
        Moves the jobs' files; None: no task reads files of the sites' storages, or registers any.
    retry
        Rules for retrying a job that failed; None: the default number of attempts, without a wait.
    on_broken
        Called with a site that gets no more jobs, before its jobs are matched anew.
    on_unreached
        Called with the files that could not be brought to a site, before their job is matched anew.
    """

    def __init__(
        self,
        workflow: Workflow,
        sites: Sequence[SiteFacts],
        broker: ResourceBroker,
        elements: Mapping[str, ComputingElement],
        *,
        choice: str,
        moment: FreezableClock,
        staging: FileStaging | None = None,
        retry: Retry | None = None,
        on_broken: Callable[[str], None] = lambda site: None,
        on_unreached: Callable[[tuple[str, ...], str], None] | None = None,
    ) -> None:
        self._workflow = workflow
        self._tasks = workflow.tasks
        self._children = workflow.children
        self._missing = [len(parents) for parents in workflow.parents]
        self._broker = broker
        self._queues = {
            site.name: SiteQueue(
                site, elements[site.name], clock=moment, new_name=self._name_a_pilot
            )
            for site in sites
        }
        self._choice = choice
        self._moment = moment
        self._on_broken = on_broken
        self._on_unreached = on_unreached
        self._staging = staging
        self._retry = retry or Retry(backoff=0.0)
        self._ended: set[int] = set()
        self._failures: dict[int, int] = {}
        self._cuts: dict[int, int] = {}  # how often the time of a job was over before it ended
        self._later: list[tuple[float, int]] = []  # when jobs that failed are tried again
        self._matches: dict[int, SiteMatch] = {}
        self._unmatched: dict[int, str] = {}  # jobs that no site would have, and why
        self._hopeless: dict[int, str] = {}  # jobs whose files cannot be had, and why
        self._round = 0  # how often the index has heard of all sites
        self._since: dict[int, int] = {}  # in which of these a job was refused first
        self._index_changed = False  # whether the index may know something else
        self._on_the_way: set[int] = set()  # jobs whose files are being brought
        self._kept: set[int] = set()  # jobs whose outputs are being registered
        self._staging_results: list[tuple[Callable[[str], list[int]], str]] = []
        self._pilots = 0
        self._is_short = False
        self._unpaid: list[int] = []  # jobs for which there was no money
        self._events: list[SchedulerEvent] = []

    # What the run asks.

    def begin(self, past: ResumeState) -> list[Allocation]:
        """Return pilots for tasks that can start at once."""
        self._clock, self._alert = past.clock, past.alert
        self._pilots = past.pilots
        self._ended.update(past.ended)
        ran = {outcome.task: site for outcome, site in past.attempts}
        ready = [task for task, missing in enumerate(self._missing) if not missing]
        # In order of tasks, not of the set: equal runs must make equal decisions.
        for task in sorted(past.succeeded):
            ready += self._succeeded(task, ran.get(task, ""))
        with self._moment.held():
            self._match(ready)
            return self._fill()

    def ended(self, outcomes: Sequence[Ended]) -> list[Allocation]:
        """Return pilots for jobs that can start after attempts that ended together."""
        ready: list[int] = []
        for outcome, final in outcomes:
            site = self._take_in(outcome)
            if not final:
                self._again(outcome, ready)
                continue
            self._ended.add(outcome.task)
            if outcome.status is Status.SUCCEEDED:
                ready += self._succeeded(outcome.task, site)
        return self._fill_again(ready)

    def holds(self, lease: str) -> bool:
        """Whether a job is on the pilot, by the events reported so far."""
        return any(queue.holds(lease) for queue in self._queues.values())

    def lost(self, pilot: Allocation, reason: str) -> list[Allocation] | None:
        """Match the lost pilot's jobs anew; a site that fails repeatedly gets no more."""
        queue = self._queues[pilot.site]
        if not queue.holds(pilot.name):
            return []
        with self._moment.held():
            # The clock stands still: all jobs of the pilot are matched at one instant, as if sent
            # together.
            again = queue.forget(pilot.name)
            queue.failures += 1
            if queue.is_broken:
                self._notify(f"{pilot.site} is left out: {reason}")
                self._on_broken(pilot.site)
                again += queue.forget_all()
            for task in again:
                self._withdraw(task)
            self._match(again)
            return self._fill()

    def short(self, pilot: Allocation) -> None:
        """
        Take back the new jobs of an unaffordable pilot, to be matched anew after another pilot's
        end.
        """
        for task in self._queues[pilot.site].take_back(pilot.name, pilot.tasks):
            self._unpaid.append(task)
            self._withdraw(task)
        self._is_short = True

    def amend(self, goal: Goal) -> list[Allocation]:
        """Retry jobs that lacked money; the broker does not look at the goal."""
        return self._fill_again([])

    def poll(self) -> list[Allocation]:
        """Handle files that have come, waits that are over, and changes of the index."""
        messages, self._staging_results = self._staging_results, []
        with self._moment.held():
            ready = [task for follow, problem in messages for task in follow(problem)]
            now = self._clock()
            while self._later and self._later[0][0] <= now:
                ready.append(heapq.heappop(self._later)[1])
            # Refused jobs have another chance only when the index may know more.
            if self._index_changed:
                self._index_changed = False
                ready += self._unmatched
                self._unmatched.clear()
            self._match(sorted(ready))
            return self._fill()

    @property
    def wake(self) -> float:
        """Time of the next :meth:`poll`, seconds since the begin; infinite for never."""
        if self._staging_results or self._index_changed:
            return -math.inf
        return self._later[0][0] if self._later else math.inf

    def index_asked(self) -> None:
        """Note that the index has asked all sites: unmatched jobs are tried again."""
        if self._unmatched:
            self._round += 1
            self._index_changed = True
            self._alert()

    def routed(self, pilot: Allocation) -> Allocation:
        """Return the pilot unchanged: matchmaking chose the site before."""
        return pilot

    def take_events(self) -> list[SchedulerEvent]:
        """Decisions and events since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def verdict(self) -> str:
        """Reason why the jobs left will not run; empty while anything under way may help."""
        under_way = (
            self._on_the_way
            or self._kept
            or self._later
            or self._staging_results
            or self._index_changed
        )
        if under_way or not self._left or any(q.running for q in self._queues.values()):
            return ""
        if self._is_short:
            return f"there is no money for the {_jobs(self._left)} left"
        left = self._hopeless | self._unmatched
        if not left or any(self._since[task] == self._round for task in self._unmatched):
            return ""  # the index may know more in its next round
        task, reason = next(iter(left.items()))
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"no site for {self._tasks[task].id}{more}: {reason}"

    def is_broken(self, site: str) -> bool:
        """Whether a site is left out for having failed too often."""
        return self._queues[site].is_broken

    @property
    def _left(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._tasks) - len(self._ended)

    # Matching.

    def _match(self, tasks: Sequence[int]) -> None:
        """Choose a site for each unfinished task and send for the task's files."""
        for task in tasks:
            if task in self._ended:
                continue
            job = broker_job(task, self._tasks[task])
            match = self._choose(job)
            if isinstance(match, Refusal):
                self._unmatched[task] = match.reason
                # A refusal counts as lasting only after a full round of the index: facts may just
                # be missing.
                self._since.setdefault(task, _ALWAYS if match.final else self._round)
                continue
            self._since.pop(task, None)
            self._matches[task] = match
            # Told before the next job is matched, or a burst would all go to the one best site.
            self._broker.sent(job, match.site)
            if self._tasks[task].data and self._staging is not None:
                self._on_the_way.add(task)
                self._staging.bring(
                    task,
                    match.site,
                    partial(self._queue_staging_result, partial(self._brought, task)),
                )
            else:
                self._join(task)

    def _choose(self, job: BrokerJob) -> SiteMatch | Refusal:
        try:
            match = self._broker.choose(job)
        except InputError as error:  # a catalogue that was damaged meanwhile, say
            return Refusal(str(error).splitlines()[0], final=False)
        if not isinstance(match, Refusal) and self._queues[match.site].is_broken:
            return Refusal(f"{match.site} failed {MOST_FAILURES} times in a row", final=False)
        return match

    def _queue_staging_result(self, follow: Callable[[str], list[int]], problem: str) -> None:
        """Queue the outcome of a transfer until the run's next poll."""
        # Transfers end at any time, also inside a decision: acted upon only in the run's own turn.
        self._staging_results.append((follow, problem))
        self._alert()

    def _brought(self, task: int, problem: str) -> list[int]:
        """
        Queue a task whose files have come; match the task anew, a few times, if a transfer fails.
        """
        self._on_the_way.discard(task)
        site = self._matches[task].site
        if not problem and not self._queues[site].is_broken:
            self._join(task)
            return []
        self._withdraw(task)
        if not problem:
            return [task]  # the site has come to be left out meanwhile
        if self._on_unreached is not None:
            self._on_unreached(self._tasks[task].data, site)
        self._failures[task] = failures = self._failures.get(task, 0) + 1
        self._notify(f"{self._tasks[task].id} at {site}: {problem}")
        if failures >= self._retry.attempts:
            self._hopeless[task] = problem
        else:
            wait = self._retry.wait_before(failures + 1)
            heapq.heappush(self._later, (self._clock() + wait, task))
        return []

    def _join(self, task: int) -> None:
        """Add a task to the queue of the site chosen for the task."""
        stretch = 2.0 ** self._cuts.get(task, 0)
        self._queues[self._matches[task].site].join(task, self._tasks[task], stretch)
        self._broker.arrived(task)

    def _withdraw(self, task: int, *, well: bool = False) -> None:
        """Remove a task from its site; ``well`` says whether the task succeeded."""
        match = self._matches.pop(task, None)
        if match is not None:
            self._queues[match.site].leave(task)
            self._broker.ended(task, well=well)
        if self._staging is not None:
            self._staging.release(task)

    # What ends.

    def _take_in(self, outcome: Outcome) -> str:
        """Record the end of an attempt; return the site of the attempt."""
        task = outcome.task
        match = self._matches.get(task)
        if match is None:
            return ""
        queue = self._queues[match.site]
        if outcome.status in (Status.LOST, Status.CANCELLED):
            queue.retire(task)
        else:
            queue.failures = 0
        self._withdraw(task, well=outcome.status is Status.SUCCEEDED)
        return match.site

    def _again(self, outcome: Outcome, ready: list[int]) -> None:
        """Queue a job for another attempt; after a failure, only when the retry delay is over."""
        wait = 0.0
        if outcome.status is Status.CANCELLED:  # its time was over: it needs more
            self._cuts[outcome.task] = self._cuts.get(outcome.task, 0) + 1
        else:
            self._failures[outcome.task] = failures = self._failures.get(outcome.task, 0) + 1
            wait = self._retry.wait_before(failures + 1)
        if wait > 0:
            heapq.heappush(self._later, (self._clock() + wait, outcome.task))
        else:
            ready.append(outcome.task)

    def _succeeded(self, task: int, site: str) -> list[int]:
        """Return tasks that can start now that one has succeeded."""
        if self._tasks[task].registers and self._staging is not None:
            # Children that read the outputs by their logical names must wait for the catalogue.
            self._kept.add(task)
            self._staging.keep(
                task, site, partial(self._queue_staging_result, partial(self._was_kept, task))
            )
            return []
        return release_children(self._children, self._missing, task)

    def _was_kept(self, task: int, problem: str) -> list[int]:
        self._kept.discard(task)
        if problem:
            self._notify(f"{self._tasks[task].id}: {problem}")
            readers = {t for t in self._children[task] if self._reads_of(t, task)} - self._ended
            self._hopeless.update(dict.fromkeys(sorted(readers), problem))
            return [
                t for t in release_children(self._children, self._missing, task) if t not in readers
            ]
        return release_children(self._children, self._missing, task)

    def _reads_of(self, child: int, parent: int) -> bool:
        registered = set(self._tasks[parent].registers.values())
        return not registered.isdisjoint(self._tasks[child].data)

    # Sending.

    def _fill(self) -> list[Allocation]:
        """Give free processors to waiting jobs; release idle ones."""
        if self._is_short:
            return []
        now = self._clock()
        pilots = [pilot for queue in self._queues.values() for pilot in queue.start(now)]
        for pilot in pilots:
            for task in pilot.tasks:
                self._broker.began(task)
                self._note(task, pilot, now)
        return pilots

    def _fill_again(self, ready: list[int]) -> list[Allocation]:
        """Match again the jobs that lacked money."""
        unpaid, self._unpaid = self._unpaid, []
        self._is_short = False
        with self._moment.held():
            self._match(sorted([*ready, *unpaid]))
            return self._fill()

    def _name_a_pilot(self) -> str:
        self._pilots += 1
        return f"lease-{self._pilots}"

    # What the journal keeps of it.

    def _note(self, task: int, pilot: Allocation, now: float) -> None:
        match = self._matches[task]
        weighed = [
            SiteDecision(
                name,
                queue.facts.unit_price or 0.0,
                queue.busy,
                queue.facts.processors,
                int(name == match.site),
                match.reason_of(name),
            )
            for name in dict.fromkeys([match.site, *match.best(_SITES_LOGGED)])
            for queue in (self._queues[name],)
        ]
        decision = PlacementDecision(
            at=now,
            strategy=f"broker, {self._choice}",
            left=self._left,
            sites=weighed,
            sent=[(task, match.site, pilot.name)],
        )
        self._events.append((DECISION, msgspec.json.encode(decision).decode()))

    def _notify(self, text: str) -> None:
        self._events.append(("message", text))


def _jobs(count: int) -> str:
    return "1 job that is" if count == 1 else f"{count} jobs that are"


_ALWAYS = -1
"""Round of a final refusal, before every real round."""
