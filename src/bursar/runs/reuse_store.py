"""
The record beside a run's journal of what its results depend on, and which of them may be reused.

``reuse.sqlite`` in the run's folder: the states of all input and code files as they were before the
first task began, and a row for each task whose success is durable. The row is written afterwards,
when the files that the task had read are known to be unchanged and its outputs have been read. So
a run that is killed at any instant leaves a row too few, and never one too many.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError
from bursar.model.task import Status
from bursar.runs.file_states import ABSENT, FileState, file_state, is_untouched
from bursar.runs.folder import RunFolder
from bursar.runs.recording.batches import RecordBatches
from bursar.runs.run_record import log_files
from bursar.runs.task_fingerprints import TaskDefinitions, define, files_of
from bursar.sqlite_file import (
    LockWaitingConnection,
    SqliteSchema,
    connect,
    keep_write_ahead_log,
    transaction,
    translate_sqlite_errors,
    warn_on_stderr,
)

_WHAT = "record of results"
_LAYOUT = SqliteSchema(
    what=_WHAT,
    key="reuse-format",
    format="1",
    statements=(
        """CREATE TABLE files (
            kind TEXT NOT NULL, name TEXT NOT NULL, state BLOB NOT NULL,
            PRIMARY KEY (kind, name)) WITHOUT ROWID""",
        """CREATE TABLE results (
            task INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL, outputs BLOB NOT NULL,
            problem TEXT NOT NULL)""",
    ),
)
_INSERT = "INSERT OR REPLACE INTO results VALUES (?,?,?,?)"
_INPUT, _CODE = "input", "code"

LOGS = "logs/"
"""Prefix of the names under which files with long output are recorded among the outputs."""


class RecordedResult(msgspec.Struct, frozen=True):
    """
    A result of a run, as recorded after the task's success.

    Parameters
    ----------
    fingerprint
        Fingerprint of the task, as this version made it.
    outputs
        States of the task's outputs, by name.
    problem
        Why the result must not be reused; empty: it may.
    """

    fingerprint: bytes
    outputs: dict[str, FileState]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """
    What a run's folder tells of what its results depend on.

    Parameters
    ----------
    root
        The campaign's folder.
    source_digest
        Digest of what the campaign file says; empty: the campaign came from no file.
    definitions
        Definitions of the run's tasks, with the states of their files before the run began.
    results
        Recorded results by the task's number.
    """

    root: Path
    source_digest: str
    definitions: TaskDefinitions
    results: Mapping[int, RecordedResult]


def write_definitions(folder: RunFolder, definitions: TaskDefinitions, source_digest: str) -> None:
    """
    Make the record of a run that begins.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    encode = msgspec.msgpack.Encoder().encode
    with _writing(folder.reuse_file) as db, transaction(db):
        _LAYOUT.make(db)
        db.execute("INSERT INTO meta VALUES ('source-digest', ?)", (source_digest,))
        for kind, states in ((_INPUT, definitions.inputs), (_CODE, definitions.code)):
            rows = [(kind, name, encode(state)) for name, state in states.items()]
            db.executemany("INSERT INTO files VALUES (?,?,?)", rows)


def write_results(folder: RunFolder, results: Mapping[int, RecordedResult]) -> None:
    """
    Add results to the record of a run.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    encode = msgspec.msgpack.Encoder().encode
    with _writing(folder.reuse_file) as db, transaction(db):
        db.executemany(
            _INSERT,
            [
                (task, result.fingerprint, encode(result.outputs), result.problem)
                for task, result in results.items()
            ],
        )


def read_recorded(folder: RunFolder, campaign: Campaign) -> RecordedRun | None:
    """
    Return what a run recorded; None where it recorded nothing.

    Parameters
    ----------
    campaign
        The run's campaign as it was.

    Raises
    ------
    InputError
        When the record is damaged, or of a format that cannot be read.
    """
    path = folder.reuse_file
    if not path.exists():
        return None
    state = msgspec.msgpack.Decoder(FileState).decode
    outputs = msgspec.msgpack.Decoder(dict[str, FileState]).decode
    states: dict[str, dict[str, FileState]] = {_INPUT: {}, _CODE: {}}
    with _opened(path, writes=False) as db:
        _LAYOUT.check(db, path)
        digest = db.execute("SELECT value FROM meta WHERE key = 'source-digest'").get or ""
        for kind, name, data in db.execute("SELECT kind, name, state FROM files"):
            states[kind][name] = state(data)
        rows = db.execute("SELECT task, fingerprint, outputs, problem FROM results").fetchall()
    workflow = campaign.workflow
    definitions = define(workflow, files_of(workflow), states[_INPUT], states[_CODE])
    return RecordedRun(
        root=campaign.root,
        source_digest=digest,
        definitions=definitions,
        results={
            task: RecordedResult(fingerprint, outputs(data), problem)
            for task, fingerprint, data, problem in rows
        },
    )


def output_path(folder: RunFolder, name: str) -> Path:
    """Return the path of an output of a task, as recorded, in a run's folder."""
    if name.startswith(LOGS):
        return folder.logs / name.removeprefix(LOGS)
    return folder.files / name


@contextlib.contextmanager
def _opened(path: Path, *, writes: bool) -> Iterator[LockWaitingConnection]:
    with (
        translate_sqlite_errors(path, _WHAT),
        contextlib.closing(connect(path, synchronous="NORMAL" if writes else None)) as db,
    ):
        yield db


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[LockWaitingConnection]:
    with _opened(path, writes=True) as db:
        keep_write_ahead_log(db)
        yield db


class ReuseRecorder:
    """
    Records the results of a run that goes on, as tasks succeed.

    Does nothing for a run without a record, which is never reused.

    Parameters
    ----------
    campaign
        The run's campaign as it was.
    tell
        Called with a line for people when results cannot be recorded, which ends no run: they are
        not reused later.
    """

    def __init__(
        self, folder: RunFolder, campaign: Campaign, tell: Callable[[str], None] = warn_on_stderr
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._root = campaign.root
        self._changed: set[str] = set()
        self.batches = RecordBatches(self._record, self._give_up)
        recorded = None
        try:
            recorded = read_recorded(folder, campaign)
        except BursarError as error:
            self._give_up(error)
        if recorded is None:
            self.batches.close()
            return
        self._definitions = recorded.definitions
        self._inputs = dict(recorded.definitions.inputs)
        self._code = dict(recorded.definitions.code)

    def take_in(self, record: AttemptRecord) -> None:
        """Note an attempt whose end is durable."""
        if record.outcome.status is Status.SUCCEEDED:
            self.batches.add(record)

    def _give_up(self, error: BursarError) -> None:
        self._tell(f"results of this run will not be reused: {error}")

    def _record(self, batch: Sequence[AttemptRecord]) -> None:
        definitions = self._definitions
        # After the ends of all these tasks: what is unchanged now was so while they ran.
        code = next((name for name in self._code if self._has_changed(name, self._code)), None)
        problem = None if code is None else f"code {code} changed"
        checked: dict[str, bool] = {}
        results = {}
        for record in batch:
            number = record.outcome.task
            fingerprint = definitions.fingerprints[number]
            if fingerprint is None:
                continue
            why = problem
            for name in definitions.files.initial(number):
                if name not in checked:
                    checked[name] = self._has_changed(name, self._inputs)
                if checked[name] and why is None:
                    why = f"input {name} changed"
            outputs = self._outputs_of(definitions, record)
            if why is None and any(state.digest == ABSENT for state in outputs.values()):
                why = "an output went away"
            results[number] = RecordedResult(
                fingerprint, outputs, "" if why is None else f"{why} while the run went on"
            )
        write_results(self._folder, results)

    def _has_changed(self, name: str, states: dict[str, FileState]) -> bool:
        """Whether a file may have been changed since the run began; once true, for good."""
        if name in self._changed:
            return True
        path, since = self._root / name, states[name]
        again = since if since.settled else file_state(path)
        if again.digest != since.digest or not is_untouched(path, since):
            # Also with its old content: who read the file meanwhile read something else.
            self._changed.add(name)
            return True
        # By now a later change would move the stamp: the file need not be read again.
        states[name] = again
        return False

    def _outputs_of(
        self, definitions: TaskDefinitions, record: AttemptRecord
    ) -> dict[str, FileState]:
        folder, number = self._folder, record.outcome.task
        names = list(definitions.files.makes[number])
        task = definitions.workflow.tasks[number].id
        logs = log_files(folder, number, task, record)
        names += [f"{LOGS}{path.name}" for path in logs if path is not None]
        return {name: file_state(output_path(folder, name)) for name in names}
