"""
Checks invariants of the simulated service against what clients and workers see.

The checker knows no party's inner state: only the answers to clients, and which tasks workers ran
and when. Agreements are checked by :mod:`bursar_devtools.faults.agreement_checker`.
"""

import asyncio
import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bursar.model.task import Outcome, Status
from bursar.remote import messages as api
from bursar.service.interfaces import Clock
from bursar_devtools.faults.agreement_checker import AgreementChecker
from bursar_devtools.faults.client_campaign import ClientCampaign
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_task import SimulatedTask

LENIENCE = 20.0
"""Seconds by which a task may miss its agreement's times, for clock drift and message delays."""

UNDER_WAY = 10.0
"""Most seconds that a message takes where there is no partition."""

LATEST = 30.0
"""Seconds of calm within which a worker must have received a task's cancellation."""

_SAME = 1e-3
"""Seconds by which times of one attempt may differ after their conversion to JSON and back."""

_ROUGHLY = 0.03
"""Share by which clocks may differ about a duration."""

_FINAL = ("succeeded", "failed", "timed-out", "cancelled", "skipped")


@dataclass(frozen=True, slots=True)
class _EndedAttempt:
    """Times of an attempt by its worker's clock, and its exit code; None: it was killed."""

    begin: float
    end: float
    exit_code: int | None


class InvariantChecker:
    """
    Records what parties did and were answered, and reports violations.

    Parameters
    ----------
    trace
        Records violations.
    server_clock
        The service's clock, seconds since the epoch.
    pool_of
        Returns the pool of a worker at the service; empty when the service does not know the
        worker.
    holder_of
        Returns the worker that has a task beyond doubt, by the task's name; empty when none has.
    late_until
        Returns the virtual time until which delayed messages to a party may arrive.
    contracts
        Checks agreements.
    now
        Returns virtual seconds.
    prompt
        Whether messages arrive soon enough for checks of agreements' times.
    calm
        Whether no fault hits workers, so that each task must begin exactly once.
    same_time
        Whether all clocks agree.
    has_succeeded
        Returns whether the success of a user's task is durable, by user, instance and number; None
        while that cannot be known.
    """

    def __init__(
        self,
        trace: EventTrace,
        *,
        server_clock: Clock,
        pool_of: Callable[[str], str],
        holder_of: Callable[[str], str],
        late_until: Callable[[str], float],
        contracts: AgreementChecker,
        now: Clock,
        prompt: bool,
        calm: bool,
        same_time: bool,
        has_succeeded: Callable[[str, str, int], bool | None],
    ) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.campaigns: dict[str, ClientCampaign] = {}
        self.calm_since = math.inf
        self.contracts = contracts
        self._trace = trace
        self._server_clock = server_clock
        self._pool_of = pool_of
        self._holder_of = holder_of
        self._late_until = late_until
        self._now = now
        self._prompt = prompt
        self._calm = calm
        self._same_time = same_time
        self._has_succeeded = has_succeeded
        self._busy: Counter[str] = Counter()  # processors, by worker
        self._running: Counter[str] = Counter()  # tasks, by campaign
        self._ends: dict[str, list[_EndedAttempt]] = {}  # by piece
        self._owner: dict[str, ClientCampaign] = {}  # by piece
        self._pieces: dict[str, SimulatedTask] = {}  # as submitted, by name
        self._begun: Counter[str] = Counter()  # attempts, by piece
        self._failed: dict[str, list[float]] = {}  # seconds of acknowledged failures, by piece
        self._child: dict[str, str] = {}  # a child that has begun, by piece
        self._unsure: set[tuple[str, str]] = set()  # child that has begun, and a parent
        self._unwanted: dict[str, float] = {}  # virtual s of its acknowledged cancel, by piece
        self._due: dict[str, float] = {}  # processor-seconds to be charged, by campaign

    def wrong(self, party: str, what: str) -> None:
        """Report a violation; the first one ends the simulation."""
        self._trace.note(party, f"** {what}")
        # Later violations mostly follow from the first, which ends the simulation.
        if not self.failed.done():
            self.failed.set_result(f"{party}: {what}")

    def wants(self, campaign: ClientCampaign) -> None:
        """Register a campaign before the user begins."""
        self.campaigns[campaign.name] = campaign
        for pieces in campaign.pieces.values():
            self._owner.update((piece.name, campaign) for piece in pieces)
            self._pieces.update((piece.name, piece) for piece in pieces)

    @property
    def work(self) -> float:
        """Processor-seconds of all tasks, each done as often as it may be tried."""
        return sum(
            piece.seconds * piece.processors * (1 + piece.retries)
            for campaign in self.campaigns.values()
            for pieces in campaign.pieces.values()
            for piece in pieces
        )

    def campaigns_of(self, user: str) -> list[ClientCampaign]:
        """Return the campaigns of a user."""
        return [campaign for campaign in self.campaigns.values() if campaign.user == user]

    # Workers.

    def given(self, worker: str, piece: SimulatedTask) -> None:
        """
        Check a task's assignment: no other worker has the task, and it was not cancelled long ago.
        """
        holder = self._holder_of(piece.name)
        if holder:
            self.wrong(worker, f"is given {piece.name}, which {holder} has")
        # Only where messages are prompt: an assignment may have been sent before the cancellation.
        if self._prompt and self._now() > self._unwanted.get(piece.name, math.inf) + UNDER_WAY:
            self.wrong(worker, f"is given {piece.name}, whose cancellation was acknowledged")
        if child := self._child.get(piece.name):
            self.wrong(worker, f"is given {piece.name} again, after {child} has begun")

    def began(self, worker: str, processors: int, piece: SimulatedTask) -> None:
        """Check the start of a task: processors, pool, repetition, cancellation and agreement."""
        self._busy[worker] += piece.processors
        if self._busy[worker] > processors:
            self.wrong(worker, f"runs on {self._busy[worker]} of its {processors} processors")
        campaign = self._owner[piece.name]
        self._running[campaign.name] += 1
        running = self._running[campaign.name]
        # A worker that is given up may run its tasks on.
        if self._calm and running > (campaign.at_once or running):
            self.wrong(worker, f"begins {piece.name}, with which {running} of its group run")
        pool = self._pool_of(worker)
        if pool and pool != (campaign.agreement or "shared"):
            self.wrong(worker, f"of pool {pool} runs {piece.name} of {campaign.agreement!r}")
        failures = sum(bool(ended.exit_code) for ended in self._ends.get(piece.name, ()))
        allowed = 1 + min(failures, self._pieces[piece.name].retries)
        if self._calm and self._begun[piece.name] >= allowed:
            self.wrong(worker, f"begins {piece.name} again, and nothing had happened to it")
        self._begun[piece.name] += 1
        for parent in self._pieces[piece.name].after:
            self._child.setdefault(parent, piece.name)
            self._unsure.add((piece.name, parent))
        self.look_at_parents()
        self._look_at_wishes(worker, piece, math.inf)
        self._look_at_times(worker, campaign, piece)

    def look_at_parents(self) -> None:
        """Check that tasks began after their parents' successes were durable, where known."""
        for child, parent in sorted(self._unsure):
            campaign = self._owner[child]
            number = campaign.number_of(parent)
            has_succeeded = self._has_succeeded(campaign.user, campaign.handle, number)
            if has_succeeded is None:
                continue  # a later life of the service says
            self._unsure.discard((child, parent))
            if not has_succeeded:
                self.wrong(campaign.user, f"{child} has begun, and {parent} has not succeeded")

    def ended(
        self,
        worker: str,
        piece: SimulatedTask,
        begin: float,
        end: float,
        *,
        exit_code: int | None,
        in_touch_since: float,
    ) -> None:
        """
        Check the end of an attempt on a worker that was connected since then.

        The exit code is None for an attempt that was killed.
        """
        if exit_code is not None:
            self._look_at_wishes(worker, piece, in_touch_since)
        self._stopped(worker, piece)
        self._ends.setdefault(piece.name, []).append(_EndedAttempt(begin, end, exit_code))
        self._look_at_times(worker, self._owner[piece.name], piece)

    def recorded(self, piece: SimulatedTask, outcome: Outcome) -> None:
        """
        Note that an outcome was acknowledged over the connection that assigned the task.

        The service has known all the while that the attempt was this worker's: its usage is
        charged even if the instance was destroyed meanwhile. A task that was stopped for another
        reason runs again, and the stopped attempt is not charged.
        """
        campaign = self._owner[piece.name]
        ran = outcome.status in (Status.SUCCEEDED, Status.FAILED)
        if ran or (outcome.status is Status.CANCELLED and "destroyed" in outcome.reason):
            used = (outcome.end - outcome.start) * piece.processors
            self._due[campaign.name] = self._due.get(campaign.name, 0.0) + used
        if outcome.status is Status.FAILED:
            failures = self._failed.setdefault(piece.name, [])
            failures.append(outcome.end - outcome.start)
            if len(failures) > 1 + self._pieces[piece.name].retries:
                self.wrong(campaign.user, f"{piece.name} has failed {len(failures)} times")

    def lost(self, worker: str, piece: SimulatedTask) -> None:
        """Record that an attempt ended together with the worker."""
        self._stopped(worker, piece)

    def _stopped(self, worker: str, piece: SimulatedTask) -> None:
        self._busy[worker] -= piece.processors
        self._running[self._owner[piece.name].name] -= 1

    def _look_at_wishes(self, worker: str, piece: SimulatedTask, in_touch_since: float) -> None:
        unwanted = self._unwanted.get(piece.name, math.inf)
        possible = max(unwanted, self._late_until(worker))  # a cut may outlast the trouble
        heard = max(possible, in_touch_since) + UNDER_WAY
        # Two bounds, whichever comes first: some time after all faults have ended, or a message's
        # time after the worker was both in touch and reachable.
        if self._now() > min(max(possible, self.calm_since) + LATEST, heard):
            self.wrong(worker, f"runs {piece.name}, whose cancellation was acknowledged")

    def _look_at_times(self, worker: str, campaign: ClientCampaign, piece: SimulatedTask) -> None:
        if not campaign.agreement or not self._prompt:
            return
        agreement = self.contracts.agreement(campaign.agreement)
        now = self._server_clock()
        if agreement is None:
            self.wrong(worker, f"{piece.name} runs for an agreement that nobody has made")
        elif not agreement.terms.start - LENIENCE <= now <= agreement.terms.end + LENIENCE:
            self.wrong(worker, f"{piece.name} runs outside of its agreement's time")
        elif self.contracts.is_stopped(campaign.agreement):
            self.wrong(worker, f"{piece.name} runs for an agreement that was ended")

    # Clients.

    def submitted(self, campaign: ClientCampaign, key: str, numbers: range) -> None:
        """Check the numbers of an acknowledged submission."""
        who, expected = campaign.user, len(campaign.pieces[key])
        if len(numbers) != expected:
            self.wrong(who, f"{expected} tasks submitted, {len(numbers)} acknowledged")
        if campaign.numbers.setdefault(key, numbers) != numbers:
            self.wrong(who, f"{key} is {campaign.numbers[key]} and then {numbers}")
        for other, taken in campaign.numbers.items():
            if other != key and max(taken.start, numbers.start) < min(taken.stop, numbers.stop):
                self.wrong(who, f"{key} and {other} share numbers")

    def cancelled(self, campaign: ClientCampaign, numbers: Iterable[int]) -> None:
        """Record tasks whose cancellation was acknowledged."""
        for number in numbers:
            piece = campaign.piece(number)
            if piece is not None:
                self._unwanted.setdefault(piece.name, self._now())

    def destroyed(self, campaign: ClientCampaign) -> None:
        """Record that an instance's destruction was acknowledged, which cancels all tasks."""
        for pieces in campaign.pieces.values():
            for piece in pieces:
                self._unwanted.setdefault(piece.name, self._now())

    def noticed(self, campaign: ClientCampaign, info: api.InstanceInfo) -> None:
        """Check an event of an instance."""
        if info.id != campaign.handle or info.label != campaign.name:
            self.wrong(campaign.user, f"is told of {info.label} in place of {campaign.name}")
        if info.results < campaign.seen:
            self.wrong(
                campaign.user, f"is told of {info.results} results after {campaign.seen} of them"
            )
        campaign.seen = info.results

    def received(self, campaign: ClientCampaign, result: api.Result) -> None:
        """Check a result that a client receives for the first time."""
        if result.task in campaign.results:
            self.wrong(campaign.user, f"task {result.task} of {campaign.name} has two results")
        if result.cursor != campaign.after + 1:
            self.wrong(campaign.user, f"result {result.cursor} comes after {campaign.after}")
        campaign.results[result.task] = result
        campaign.after = result.cursor
        self._compare(campaign, result)

    def received_again(self, campaign: ClientCampaign, result: api.Result) -> None:
        """Check that a result that a client fetches again is unchanged."""
        if campaign.results.get(result.task) != result:
            self.wrong(campaign.user, f"task {result.task} of {campaign.name} has two results")

    def _compare(self, campaign: ClientCampaign, result: api.Result) -> None:
        """Compare a result with the submission and with the attempts of workers."""
        who = campaign.user
        if result.state not in _FINAL:
            self.wrong(who, f"task {result.task} has a result but is {result.state}")
        piece = campaign.piece(result.task)
        if piece is None:
            return  # of a submission whose answer the client has yet to hear
        if result.label != piece.name:
            self.wrong(who, f"{piece.name} was given the result of {result.label}")
        self._compare_parents(campaign, piece, result)
        if result.state == "skipped":
            if self._begun[piece.name]:
                self.wrong(who, f"{piece.name} was skipped, and has begun")
        elif result.state == "cancelled":
            if not campaign.may_be_cancelled(piece):
                self.wrong(who, f"{piece.name} was cancelled by nobody: {result.reason}")
        elif piece.is_sealed and result.sealed:
            self._compare_sealed(who, piece, result)
        elif result.exit_code is None:
            if result.state == "succeeded" or "lost" not in result.reason:
                self.wrong(who, f"{piece.name} {result.state} and did not run: {result.reason}")
        else:
            self._compare_run(who, piece, result)

    def _compare_parents(
        self, campaign: ClientCampaign, piece: SimulatedTask, result: api.Result
    ) -> None:
        """Check that a task ran only if all parents had succeeded before, and else was skipped."""
        if not piece.after or result.state == "cancelled":
            return
        found = [campaign.results.get(campaign.number_of(name)) for name in piece.after]
        before = [parent for parent in found if parent and parent.cursor < result.cursor]
        succeeded = [parent for parent in before if parent.state == "succeeded"]
        if result.state == "skipped":
            if len(succeeded) == len(before):
                self.wrong(campaign.user, f"{piece.name} was skipped, and no parent had failed")
        elif len(succeeded) < len(found):
            self.wrong(campaign.user, f"{piece.name} {result.state} before all of its parents did")

    def _compare_run(self, who: str, piece: SimulatedTask, result: api.Result) -> None:
        possible = (0, piece.exit_code) if piece.flaky else (piece.exit_code,)
        if result.exit_code not in possible or result.stdout != piece.name:
            self.wrong(who, f"{piece.name} ended with {result.exit_code}, {result.stdout!r}")
        if result.state != ("succeeded" if result.exit_code == 0 else "failed"):
            self.wrong(who, f"{piece.name} is {result.state}, status {result.exit_code}")
        self._compare_attempts(who, piece, result)

    def _compare_sealed(self, who: str, piece: SimulatedTask, result: api.Result) -> None:
        if base64.b64decode(result.sealed) != piece.sealed_result:
            self.wrong(who, f"{piece.name} has a sealed result that is another one")
        if result.exit_code is not None or result.stdout or result.stderr:
            self.wrong(who, f"{piece.name} is sealed, and told in clear")
        self._compare_attempts(who, piece, result)

    def _compare_attempts(self, who: str, piece: SimulatedTask, result: api.Result) -> None:
        has_failed = result.state == "failed"
        attempts = [
            ended
            for ended in self._ends.get(piece.name, ())
            if ended.exit_code is not None and bool(ended.exit_code) == has_failed
        ]
        if not any(self._is_told(result, ended.begin, ended.end) for ended in attempts):
            self.wrong(who, f"{piece.name} has a result that no worker has reported")
        # A cancelled task that fails before it is stopped has failed, whatever tries are left.
        may_be_cancelled = self._owner[piece.name].may_be_cancelled(piece)
        if has_failed and not may_be_cancelled and len(attempts) <= piece.retries:
            self.wrong(who, f"{piece.name} is failed after {len(attempts)} tries")

    def _is_told(self, result: api.Result, begin: float, end: float) -> bool:
        """
        Whether a result describes this attempt.

        Where clocks differ, the service moves an attempt to where it can have been by its own,
        and cuts what took longer than there was time.
        """
        if not self._same_time:
            # Never longer than the attempt was: what the service cuts is lost to it, not to the
            # user.
            return result.end - result.start < end - begin + _SAME
        return abs(begin - result.start) < _SAME and abs(end - result.end) < _SAME

    def settled(self, campaign: ClientCampaign) -> None:
        """Check all results of a campaign after the simulation has come to rest."""
        for result in campaign.results.values():
            if campaign.piece(result.task) is None:
                self.wrong(campaign.user, f"a result of task {result.task}: nobody submitted it")
            self._compare(campaign, result)
        for key, numbers in campaign.numbers.items():
            for number in numbers:
                if number not in campaign.results:
                    self.wrong(campaign.user, f"task {number} of {key} has no result")

    def paid(self, user: str, amount: int, prices: Sequence[float], *, jump: float) -> None:
        """
        Check a user's charges for shared processors, each final attempt once.

        Parameters
        ----------
        amount, prices
            Micro-units: the sum charged, and the possible prices of a processor-second.
        jump
            Seconds by which the service's clock may go back at a restart; an attempt may be charged
            for so much less, as it cannot begin before its instance.
        """
        shared = [c for c in self.campaigns_of(user) if not c.agreement]
        # Only workers know how far the tasks of a destroyed instance came.
        gone = [campaign for campaign in shared if campaign.destroying]
        here = [self._used(campaign) for campaign in shared if not campaign.destroying]
        most = sum(high for _, high in here) + sum(self._ran(campaign) for campaign in gone)
        least = sum(low for low, _ in here) + sum(self._due.get(c.name, 0.0) for c in gone)
        spared = jump * sum(self._width(c) for c in shared if not c.destroying)
        highest = max(prices) * most * (1 + _ROUGHLY) + len(shared)
        # A micro-unit for each sum of rounded amounts; clocks may disagree about durations by up to
        # _ROUGHLY.
        lowest = min(prices) * (least * (1 - _ROUGHLY) - spared) - 1
        if not lowest <= amount <= highest:
            self.wrong(
                user, f"paid {amount} for shared processors, used {lowest:.0f}-{highest:.0f}"
            )

    def _ran(self, campaign: ClientCampaign) -> float:
        """Return the processor-seconds of all attempts that ended at workers."""
        return sum(
            (ended.end - ended.begin) * piece.processors
            for pieces in campaign.pieces.values()
            for piece in pieces
            for ended in self._ends.get(piece.name, ())
        )

    def _used(self, campaign: ClientCampaign) -> tuple[float, float]:
        """
        Return the least and most processor-seconds of all attempts to be charged.

        These are the final ones, and those that failed before: all whose acknowledgement was
        received, and perhaps others, for workers do not see every acknowledgement.
        """
        least = most = 0.0
        for result in campaign.results.values():
            piece = campaign.piece(result.task)
            if piece is None:
                continue
            final = result.end - result.start
            acknowledged = sum(self._failed.get(piece.name, ()))
            failed = sum(e.end - e.begin for e in self._ends.get(piece.name, ()) if e.exit_code)
            if result.state == "failed":  # the final attempt is one of those that failed
                least += max(final, acknowledged) * piece.processors
                most += max(final, failed) * piece.processors
            else:
                least += (final + acknowledged) * piece.processors
                most += (final + failed) * piece.processors
        return least, most

    def _width(self, campaign: ClientCampaign) -> int:
        """Return the processors of all tasks together, each tried as often as may be."""
        return sum(
            p.processors * (1 + p.retries) for some in campaign.pieces.values() for p in some
        )
