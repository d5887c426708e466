"""Recording of a run's ended attempts in the user's history."""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence

from bursar.dispatch.journal_records import AttemptRecord
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Task
from bursar.runs.folder import RunFolder, RunManifest
from bursar.runs.recording.batches import RecordBatches
from bursar.runs.recording.run_observations import MOST_A_SECOND, RunObserver
from bursar.runs.recording.user_history import NOT_ADDED, history_to_write
from bursar.runs.run_record import RunRecord
from bursar.sqlite_file import warn_on_stderr

SAVED = 2.0
"""Seconds for which attempts that could have been observed, and did not come, are saved up."""

_BATCH = 10_000
"""Observations in one transaction where a whole journal is read."""


def execution_name(folder: RunFolder, info: RunManifest) -> str:
    """Return the name of a run in a history, which no other run has had."""
    # Also not one of the same name in the same place, after this one was deleted.
    made = hashlib.sha256(f"{folder.identity} {info.created!r}".encode()).hexdigest()
    return f"{folder.name}@{made[:8]}"


def execution_facts(name: str, info: RunManifest) -> ExecutionFacts:
    """Return what a history keeps of a run."""
    return ExecutionFacts(
        name=name,
        campaign=info.campaign,
        begun=info.created,
        site_kinds={site.name: site.kind for site in info.sites},
        tasks=info.part_of or info.tasks,
    )


class HistoryRecorder:
    """
    Records attempts of a run in a history as their ends become durable.

    Whatever goes wrong with the history is told in one line, and the run goes on without.

    Parameters
    ----------
    history
        The history; None: nothing is recorded.
    facts
        The run, as the history names it.
    observer
        Makes the observations.
    tell
        Called with a line for people when the run cannot be recorded.
    is_new
        Whether there was no earlier incarnation of the run, whose end could be missing.
    """

    def __init__(
        self,
        history: History | None,
        facts: ExecutionFacts,
        observer: RunObserver,
        tell: Callable[[str], None],
        *,
        is_new: bool = True,
    ) -> None:
        self._history = history
        self._is_new = is_new
        self._facts = facts
        self._observer = observer
        self._tell = tell
        self._last = time.monotonic()
        self._allowance = SAVED * MOST_A_SECOND
        self.batches = RecordBatches(self._record, self._give_up)
        if history is None:
            self.batches.close()

    def take_in(self, record: AttemptRecord) -> None:
        """Note an attempt whose end is durable."""
        if not record.is_reused:
            self.batches.add(record)

    def begin(self, begun: float, past: Sequence[Outcome]) -> None:
        """
        Note when this incarnation of the run began, before anything is recorded.

        Parameters
        ----------
        begun
            Seconds since the epoch.
        past
            Last outcomes of tasks that had ended before.
        """
        self._observer.begin(begun)
        for outcome in past:
            self._observer.note_end(outcome)

    def complete(self, record: RunRecord) -> None:
        """Add what a kill or an error has kept from the history, once the run has ended."""
        failed = not self.batches.is_open
        if self._history is None or (self._is_new and not failed):
            return
        try:
            complete_history(self._history, record)
        except BursarError as error:
            if not failed:  # else it was told
                self._give_up(error)

    def _give_up(self, error: BursarError) -> None:
        self._tell(NOT_ADDED.format(error))

    def _record(self, batch: Sequence[AttemptRecord]) -> None:
        assert self._history is not None
        now = time.monotonic()
        # Ends come in bursts, as after a commit that took long: what was not used is saved up.
        saved = self._allowance + MOST_A_SECOND * (now - self._last)
        self._allowance, self._last = min(saved, SAVED * MOST_A_SECOND), now
        most = max(1, int(self._allowance))
        self._allowance -= min(most, len(batch))
        observations = self._observer.observe_sample(batch, most)
        self._history.add(observations, [self._facts])


def run_recorder(
    history: History | None,
    folder: RunFolder,
    info: RunManifest,
    campaign: Campaign,
    tell: Callable[[str], None],
) -> HistoryRecorder:
    """Return the recorder of one incarnation of a run."""
    name = execution_name(folder, info)
    observer = _observer(name, folder, info, campaign)
    facts = execution_facts(name, info)
    return HistoryRecorder(history, facts, observer, tell, is_new=info.state == "new")


def calls_recorder(
    chosen: str, name: str, sites: Sequence[SiteFacts], tasks: Sequence[Task]
) -> HistoryRecorder:
    """
    Return the recorder of the calls of an executor.

    Parameters
    ----------
    chosen
        See :func:`history_file`.
    name
        Name of the executor, for people; the execution has a number of its own in addition.
    tasks
        Tasks of the calls, to which more are added as they come.
    """
    name = f"{name}@{secrets.token_hex(4)}"
    observer = RunObserver(name, tasks, sites, parents=None, templates={})
    site_kinds = {site.name: site.kind for site in sites}
    facts = ExecutionFacts(name=name, begun=time.time(), site_kinds=site_kinds)
    return HistoryRecorder(history_to_write(chosen), facts, observer, warn_on_stderr)


def observe_run(record: RunRecord) -> tuple[list[TaskObservation], ExecutionFacts]:
    """
    Return what the journal of a run tells; an even sample where tasks ended very fast.

    Raises
    ------
    BursarError
        When the run's campaign cannot be read.
    """
    folder, info = record.folder, record.info
    name = execution_name(folder, info)
    observer = _observer(name, folder, info, record.campaign)
    for begin, _ in record.incarnations:
        observer.begin(begin)
    for one in record.journal.records:
        if one.is_reused:
            observer.note_end(one.outcome)
    attempts = sorted(record.attempts, key=lambda one: one.outcome.end)
    found = []
    for start in range(0, len(attempts), _BATCH):
        batch = attempts[start : start + _BATCH]
        seconds = max(1.0, batch[-1].outcome.end - batch[0].outcome.end)
        found += observer.observe_sample(batch, int(MOST_A_SECOND * seconds))
    return found, execution_facts(name, info)


def complete_history(history: History, record: RunRecord) -> None:
    """
    Add to a history what it lacks of a run: batches that a kill or an error has lost.

    Raises
    ------
    BursarError
        When the history cannot be read or written.
    """
    if history.count_of(execution_name(record.folder, record.info)) >= len(record.attempts):
        return
    observations, facts = observe_run(record)
    for start in range(0, len(observations), _BATCH):
        history.add(observations[start : start + _BATCH], [facts], only_new=True)


def add_lost_batches(record: RunRecord) -> None:
    """Add to the history what it lacks of a run that was killed; an error is told in one line."""
    if record.info.state in ("new", "running"):
        return
    history = history_to_write(record.info.history)
    try:
        # One that was never recorded may be a simulation of an earlier version, or not wanted.
        if history is not None and history.count_of(execution_name(record.folder, record.info)):
            complete_history(history, record)
    except BursarError as error:
        warn_on_stderr(NOT_ADDED.format(error))


def _observer(name: str, folder: RunFolder, info: RunManifest, campaign: Campaign) -> RunObserver:
    workflow = campaign.workflow
    return RunObserver(
        name,
        workflow.tasks,
        info.sites,
        parents=workflow.parents,
        templates=campaign.templates,
        # What a run has made shadows the campaign's own files.
        folders=(folder.files, campaign.root),
    )
