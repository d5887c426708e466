"""
Ways to break the service on purpose, each of which the simulation of faults must notice.

A break changes one thing of the real code, as a slip might: an await left out, a check forgotten,
an index off by one.
"""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import apsw
import msgspec
import pytest

from bursar.dispatch.wire import (
    FromWorker,
)
from bursar.engine.attempt_ends import AttemptReactions
from bursar.engine.task_states import SUCCEEDED
from bursar.market.negotiation.side import NegotiationSide, OwnerSide
from bursar.market.trade_messages import Accept, TradeMessage
from bursar.market.trade_server import TradeServer
from bursar.model.money import Refusal
from bursar.model.task import Outcome
from bursar.provisioning.lrm.resource_manager import JobReport
from bursar.remote import messages as api
from bursar.service.billing.agreement_registry import AgreementRecord
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.billing.service_billing import PriceList, ServiceBilling
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import (
    SHARED_USAGE,
    SharedUsage,
    SharedUsageMeter,
    UserAccounts,
)
from bursar.service.engine import results as engine_results
from bursar.service.engine.dispatching import ServiceReactions
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.recording import OnDurable, ResultRecorder, TaskEnd
from bursar.service.engine.records import UNWANTED, TasksAdded
from bursar.service.engine.restoring import InstanceRestorer
from bursar.service.engine.tasks import SubmittedTasks
from bursar.service.http import handlers
from bursar.service.http.app import RequestAdmission
from bursar.service.identity.authentication import JournalTokenStore
from bursar.service.interfaces import Principal, ResultBatch, WorkerDemand
from bursar.service.workers.connection import ServiceWorkerConnection
from bursar.service.workers.worker_server import WorkerServer
from bursar.sites.batch import BatchSite
from bursar.sites.job_endings import JobEndings
from bursar.sites.job_settlement import JobSettlement
from bursar.sites.pilot_job_journal import PilotJobJournal, RecoveredJobs
from bursar.store import Position, RecordStore
from bursar.store.record_table import RecordTable
from bursar.worker.unacknowledged import UnacknowledgedWork
from bursar_devtools.faults.fault_plan import fault_plan_of
from bursar_devtools.faults.faulty_worker import FaultyWorker


@dataclass(frozen=True, slots=True)
class Break:
    """
    A way to break it.

    Parameters
    ----------
    name
        What it does.
    apply
        Does it, as long as the patch lasts.
    first
        Seed from which on to look: one that noticed it when this was written, to save time.
    batch
        Whether only seeds with a batch site can notice it; others need not be run.
    """

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    first: int = 0
    batch: bool = False

    def concerns(self, seed: int) -> bool:
        """Whether a seed reaches what is broken."""
        return not self.batch or fault_plan_of(seed).batch


def _acknowledges_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def durable(self: RecordStore) -> None:
        self._commit_soon()
        await asyncio.sleep(0)

    patch.setattr(RecordStore, "durable", durable)


def _a_turn_is_written_in_pieces(patch: pytest.MonkeyPatch) -> None:
    real = RecordTable.write

    def write(
        self: RecordTable,
        added: Mapping[Position, tuple[int, bytes]],
        dead: Collection[Position],
        *,
        tidy: bool,
    ) -> None:
        for position, record in added.items():
            real(self, {position: record}, (), tidy=tidy)
        real(self, {}, dead, tidy=tidy)

    patch.setattr(RecordTable, "write", write)


def _rewriting_drops_what_lives(patch: pytest.MonkeyPatch) -> None:
    real = SubmittedTasks.what_is_left

    def what_is_left(self: SubmittedTasks, *arguments: Any) -> TasksAdded:
        return msgspec.structs.replace(real(self, *arguments), which=b"", bodies=[])

    patch.setattr(SubmittedTasks, "what_is_left", what_is_left)


def _forgets_keys_of_submissions(patch: pytest.MonkeyPatch) -> None:
    real = InstanceRestorer._fill

    def fill(self: InstanceRestorer, instance: Instance, gathered: Any) -> None:
        real(self, instance, gathered)
        instance.keys.clear()

    patch.setattr(InstanceRestorer, "_fill", fill)


def _takes_outcomes_for_recorded_at_once(patch: pytest.MonkeyPatch) -> None:
    real = ResultRecorder.record

    def record(self: ResultRecorder, endings: Sequence[Any], told: OnDurable | None = None) -> None:
        if told is not None:
            told()
        real(self, endings)

    patch.setattr(ResultRecorder, "record", record)


def _results_go_on_one_too_late(patch: pytest.MonkeyPatch) -> None:
    real = ServiceEngine.results

    async def results(
        self: ServiceEngine, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        return await real(self, user, handle, after + (after > 0), limit, wait)

    patch.setattr(ServiceEngine, "results", handlers)


def _lost_workers_keep_their_tasks(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Any, seat: Any, claims: Sequence[Any], reason: str, *, counts: bool) -> None:
        for claim in claims:
            self.filling.scheduler.release(claim)

    patch.setattr(AttemptReactions, "lost", lost)


def _workers_forget_what_was_said(patch: pytest.MonkeyPatch) -> None:
    def lost_connection(self: UnacknowledgedWork) -> None:
        self._sent.clear()
        self.unsent_size = self.size = 0

    patch.setattr(UnacknowledgedWork, "lost_connection", lost_connection)


def _a_new_life_gives_out_what_runs(patch: pytest.MonkeyPatch) -> None:
    real = ServiceEngine.open

    async def opened(self: ServiceEngine) -> None:
        await real(self)
        self.settle()

    patch.setattr(ServiceEngine, "open", opened)


def _restored_cancellations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = InstanceRestorer.take

    def take(self: InstanceRestorer, kind: int, position: int, payload: bytes) -> None:
        if kind != UNWANTED:
            real(self, kind, position, payload)

    patch.setattr(InstanceRestorer, "take", take)


def _what_was_used_counts_twice_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    real = SharedUsageMeter.restore

    def restore(self: SharedUsageMeter, kind: int, position: int, payload: bytes) -> None:
        if kind == SHARED_USAGE:
            tally = msgspec.msgpack.decode(payload, type=SharedUsage)
            payload = msgspec.msgpack.encode(
                msgspec.structs.replace(tally, cost=2 * tally.cost, amount=2 * tally.amount)
            )
        real(self, kind, position, payload)

    patch.setattr(SharedUsageMeter, "restore", restore)


def _deposits_count_each_time(patch: pytest.MonkeyPatch) -> None:
    real = UserAccounts.deposit
    times = iter(range(10**9))

    def deposit(self: UserAccounts, user: str, deposit: api.Deposit) -> api.AccountInfo:
        again = msgspec.structs.replace(deposit, key=f"{deposit.key}-{next(times)}")
        return real(self, user, again)

    patch.setattr(UserAccounts, "deposit", deposit)


def _handles_are_good_for_everybody(patch: pytest.MonkeyPatch) -> None:
    real = InstanceIndex.mine

    def mine(self: InstanceIndex, user: str, handle: str) -> Instance:
        instance = self._by_handle.get(handle)
        return real(self, user if instance is None else instance.user, handle)

    patch.setattr(InstanceIndex, "mine", mine)


def _agreements_end_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgreementRecord, "end", property(lambda deal: deal.agreement.terms.end + 60.0))


def _ended_agreements_are_used(patch: pytest.MonkeyPatch) -> None:
    real = PoolAdmission.may_run

    def may_run(self: PoolAdmission, pool: str, user: str, now: float) -> float | Refusal:
        deal = self._agreements.deals.get(pool)
        if deal is not None and deal.start <= now < deal.end:
            return deal.end - now
        return real(self, pool, user, now)

    def pools(self: PoolAdmission, now: float) -> dict[str, WorkerDemand]:
        return {
            name: WorkerDemand(
                user=deal.agreement.customer,
                processors=deal.agreement.processors,
                start=deal.start,
                until=deal.end,
            )
            for name, deal in self._agreements.deals.items()
            if deal.start <= now < deal.end
        }

    patch.setattr(PoolAdmission, "may_run", may_run)
    patch.setattr(PoolAdmission, "pools", pools)


def _an_acceptance_sells_each_time(patch: pytest.MonkeyPatch) -> None:
    real = NegotiationSide.receive

    def receive(
        self: NegotiationSide, message: TradeMessage, now: float
    ) -> tuple[TradeMessage, ...]:
        if isinstance(self, OwnerSide) and isinstance(message, Accept) and self.agreement:
            return self._sell(message, self.agreement.terms, now)
        return real(self, message, now)

    patch.setattr(NegotiationSide, "receive", receive)


def _what_was_sold_is_free_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    real = ServiceBilling.open

    def opened(self: ServiceBilling) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TradeServer, "restore", lambda server, agreement: None)
            real(self)

    patch.setattr(ServiceBilling, "open", opened)


def _a_revocation_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalTokenStore, "_bury", lambda self: None)


def _streams_outlive_their_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestAdmission, "is_still_valid", lambda self, request, principal: True)


def _a_price_is_forgotten_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PriceList, "restore", lambda self, kind, position, payload: None)


def _events_that_were_missed_are_not_told(patch: pytest.MonkeyPatch) -> None:
    real, last_event = ServiceEngine.changes, handlers._last_event

    async def changes(
        self: ServiceEngine, user: str, handle: str
    ) -> AsyncIterator[api.InstanceInfo]:
        is_first = True
        async for info in real(self, user, handle):
            if not is_first:
                yield info
            is_first = False

    def last(call: Any) -> int | None:
        return None if last_event(call) is None else sys.maxsize

    patch.setattr(ServiceEngine, "changes", changes)
    patch.setattr(handlers, "_last_event", last)


def _destroyed_tasks_run_on(patch: pytest.MonkeyPatch) -> None:
    stop = ServiceReactions.stop

    def stop_some(self: ServiceReactions, instance: Any, chosen: Any, *more: Any) -> None:
        if chosen is not None:
            stop(self, instance, chosen, *more)

    patch.setattr(ServiceReactions, "stop", stop_some)


def _sealed_bytes_are_read_as_text(patch: pytest.MonkeyPatch) -> None:
    def encode(data: bytes) -> bytes:
        return base64.b64encode(data.decode(errors="replace").encode())

    patch.setattr(engine_results, "base64", SimpleNamespace(b64encode=encode))


def _superseded_connections_are_heard(patch: pytest.MonkeyPatch) -> None:
    real = WorkerServer.on_message

    def heard(self: WorkerServer, connection: ServiceWorkerConnection, message: FromWorker) -> None:
        worker = self._dispatching.registered[connection.worker]
        link, worker.link = worker.link, connection  # as if it were the newest
        try:
            real(self, connection, message)
        finally:
            worker.link = link

    patch.setattr(WorkerServer, "on_message", heard)


def _any_attempt_may_come_back(patch: pytest.MonkeyPatch) -> None:
    real = AttemptReactions.returned

    def returned(self: Any, worker: Any, jobs: Sequence[tuple[int, int]]) -> None:
        claims = self.filling.scheduler.claims
        present = [(task, claims[task].attempt) for task, _ in jobs if task in claims]
        real(self, worker, present)

    patch.setattr(AttemptReactions, "returned", returned)


def _tokens_never_expire(patch: pytest.MonkeyPatch) -> None:
    real = JournalTokenStore.find

    def find(self: JournalTokenStore, text: str) -> Principal | None:
        clock, self._clock = self._clock, lambda: 0.0
        try:
            return real(self, text)
        finally:
            self._clock = clock

    patch.setattr(JournalTokenStore, "find", find)


def _what_a_destroyed_instance_used_is_free(patch: pytest.MonkeyPatch) -> None:
    real = ResultRecorder._charge

    def charge(self: ResultRecorder, endings: list[TaskEnd]) -> None:
        if not endings[0].instance.destroyed:
            real(self, endings)

    patch.setattr(ResultRecorder, "_charge", charge)


def _the_log_goes_before_its_pages_are_durable(patch: pytest.MonkeyPatch) -> None:
    real = RecordTable.write

    def write(self: RecordTable, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        # The merge of the log by which the log is used again from its begin, without its syncs.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        self._db.execute("PRAGMA synchronous=FULL")

    patch.setattr(RecordTable, "write", write)


def _instances_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instance, "expires", property(lambda instance: None))


def _instances_expire_with_work_left(patch: pytest.MonkeyPatch) -> None:
    def expires(instance: Instance) -> float:
        return max(instance.created, instance.results.at) + instance.keep

    patch.setattr(Instance, "expires", property(expires))


def _revoked_leases_let_workers_in(patch: pytest.MonkeyPatch) -> None:
    real = WorkerServer.revoke

    def revoke(self: WorkerServer, lease: str) -> None:
        entry = self.admission.leases.get(lease)
        real(self, lease)
        if entry is not None:
            entry.workers.clear()
            self.admission.leases[lease] = entry

    patch.setattr(WorkerServer, "revoke", revoke)


def _whoever_says_nothing_may_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("bursar.engine.worker_connection.AUTHENTICATION", 1e9)


def _a_half_closed_connection_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServiceWorkerConnection, "eof_received", lambda self: True)


def _a_worker_begins_what_it_gave_back(patch: pytest.MonkeyPatch) -> None:
    real = FaultyWorker._give_back

    def give_back(self: FaultyWorker, count: int) -> None:
        jobs, pieces = list(self._queue)[-count:] if count else [], dict(self._pieces)
        real(self, count)
        for job in jobs:
            self._pieces[job.task, job.attempt] = pieces[job.task, job.attempt]
            self._queue.append(job)

    patch.setattr(FaultyWorker, "_give_back", give_back)


def _what_comes_back_is_not_given_out_again(patch: pytest.MonkeyPatch) -> None:
    def returned(self: Any, worker: Any, jobs: Sequence[tuple[int, int]]) -> None:
        if worker is not None:
            worker.prefetch.returned(len(list(jobs)))

    patch.setattr(AttemptReactions, "returned", returned)


def _unanswered_submissions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def adopt(self: JobSettlement, left: RecoveredJobs) -> dict[str, str]:
        return {}

    patch.setattr(JobEndings, "note_unanswered", lambda self, names: None)
    patch.setattr(JobSettlement, "adopt", adopt)


def _jobs_are_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobEndings, "end_soon", lambda self, jobs: None)


def _the_end_of_a_job_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    real = BatchSite._on_report

    def hear(self: BatchSite, entry: Any, report: JobReport) -> None:
        if report.state != "ended":
            real(self, entry, report)

    patch.setattr(BatchSite, "_on_report", hear)


def _jobs_are_not_written_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PilotJobJournal, "has", lambda self, name, jobs: None)


def _children_start_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    end, follow = AttemptReactions._end, ServiceReactions.follow

    def end_early(self: Any, claim: Any, *arguments: Any, **more: Any) -> Outcome:
        outcome = end(self, claim, *arguments, **more)
        if claim.instance.tasks.states[claim.task] == claim.instance.tasks.state_of_success:
            claim.instance.tasks.release(claim.task)
            self.filling.again(claim.instance)
        return outcome

    def follow_failures(self: ServiceReactions, instance: Instance, endings: Any) -> None:
        follow(self, instance, [ending for ending in endings if ending.state != SUCCEEDED])

    patch.setattr(AttemptReactions, "_end", end_early)
    patch.setattr(ServiceReactions, "follow", follow_failures)


def _children_of_failures_start(patch: pytest.MonkeyPatch) -> None:
    def bar_children(self: SubmittedTasks, task: int) -> None:
        self.release(task)

    patch.setattr(SubmittedTasks, "bar_children", bar_children)


def _after_restoring(patch: pytest.MonkeyPatch, change: Callable[[SubmittedTasks], None]) -> None:
    real = InstanceRestorer._fill

    def fill(self: InstanceRestorer, instance: Instance, gathered: Any) -> None:
        real(self, instance, gathered)
        change(instance.tasks)

    patch.setattr(InstanceRestorer, "_fill", fill)


def _barred_children_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    _after_restoring(patch, lambda tasks: tasks.barred.clear())


def _retries_begin_anew_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    _after_restoring(patch, lambda tasks: tasks.failures.clear())


def _penalties_are_capped_at_the_charge(patch: pytest.MonkeyPatch) -> None:
    real = ServiceLedger.penalise

    def penalise(
        self: ServiceLedger, user: str, agreement: str, charged: int, penalty: int, now: float
    ) -> None:
        if charged:
            real(self, user, agreement, charged, min(charged, penalty), now)

    patch.setattr(ServiceLedger, "penalise", penalise)


def _penalties_are_paid_twice(patch: pytest.MonkeyPatch) -> None:
    real = ServiceLedger.penalise

    def penalise(
        self: ServiceLedger, user: str, agreement: str, charged: int, penalty: int, now: float
    ) -> None:
        real(self, user, agreement, charged, penalty, now)
        real(self, user, f"{agreement}-again", 0, penalty, now)

    patch.setattr(ServiceLedger, "penalise", penalise)


BREAKS = (
    Break("answers before it is durable", _acknowledges_before_it_is_durable, 1),
    Break("writes the records of one turn in pieces", _a_turn_is_written_in_pieces, 220),
    Break("rewriting a submission drops tasks that live", _rewriting_drops_what_lives, 1),
    Break("forgets keys of submissions in a crash", _forgets_keys_of_submissions, 5),
    Break(
        "tells a worker that outcomes are recorded at once",
        _takes_outcomes_for_recorded_at_once,
        19,
    ),
    Break("goes on with results one too late", _results_go_on_one_too_late),
    Break("does not give back what a lost worker had", _lost_workers_keep_their_tasks),
    Break("a worker forgets what it said before the break", _workers_forget_what_was_said, 1),
    Break("a new life gives out tasks that still run", _a_new_life_gives_out_what_runs, 19),
    Break("forgets cancellations in a crash", _restored_cancellations_are_forgotten, 32),
    Break("counts shared use twice after a crash", _what_was_used_counts_twice_after_a_crash, 13),
    Break("a deposit counts each time it is asked for", _deposits_count_each_time, 1),
    Break("a handle is good for everybody", _handles_are_good_for_everybody),
    Break("lets agreements run for a minute too long", _agreements_end_late),
    Break("agreements that were ended go on being used", _ended_agreements_are_used, 33),
    Break("an acceptance that is repeated sells once more", _an_acceptance_sells_each_time, 16),
    Break("what was sold is free after a crash", _what_was_sold_is_free_after_a_crash),
    Break("a revocation is not durable", _a_revocation_is_not_kept, 4),
    Break("streams outlive their tokens", _streams_outlive_their_tokens, 5),
    Break("a price is forgotten in a crash", _a_price_is_forgotten_in_a_crash, 5),
    Break("events that were missed are not told", _events_that_were_missed_are_not_told, 11),
    Break("tasks of a destroyed instance run on", _destroyed_tasks_run_on, 5),
    Break("sealed results are taken for text", _sealed_bytes_are_read_as_text, 9),
    Break("frames of a superseded connection are heard", _superseded_connections_are_heard, 2),
    Break("a job comes back whatever its attempt", _any_attempt_may_come_back),
    Break("a worker begins what it gave back", _a_worker_begins_what_it_gave_back, 4),
    Break("what comes back is not given out again", _what_comes_back_is_not_given_out_again, 5),
    Break("tokens never expire", _tokens_never_expire, 2),
    Break("what a destroyed instance used is free", _what_a_destroyed_instance_used_is_free, 25),
    Break("instances never expire", _instances_never_expire, 2),
    Break("instances expire with work left", _instances_expire_with_work_left, 2),
    Break("a revoked lease lets workers in", _revoked_leases_let_workers_in, 2),
    Break("whoever says nothing may stay connected", _whoever_says_nothing_may_stay, 20),
    Break("a half-closed connection stays", _a_half_closed_connection_stays, 15),
    Break(
        "the log is used again before its pages are durable",
        _the_log_goes_before_its_pages_are_durable,
        1,
    ),
    Break(
        "a submission without an answer is forgotten",
        _unanswered_submissions_are_forgotten,
        749,
        batch=True,
    ),
    Break("jobs of leases that are over are not cancelled", _jobs_are_not_cancelled, 7, batch=True),
    Break("the end of a job is not noticed", _the_end_of_a_job_is_not_noticed, 29, batch=True),
    Break("jobs are not written down", _jobs_are_not_written_down, 76, batch=True),
    Break("children start before a success is durable", _children_start_before_it_is_durable),
    Break("children of a failure start", _children_of_failures_start),
    Break("a crash forgets which children are barred", _barred_children_are_forgotten),
    Break("a crash forgets failed tries", _retries_begin_anew_after_a_crash),
    Break("a penalty beyond the charge is not paid", _penalties_are_capped_at_the_charge),
    Break("a penalty is paid twice", _penalties_are_paid_twice),
)
