"""Results of an earlier run that a campaign takes: found, checked, and put into a new run."""

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bursar.dispatch.folders import folder_name
from bursar.dispatch.journal import RunJournal, is_written, read_journal
from bursar.dispatch.journal_records import (
    REUSED,
    REUSED_LEASE,
    AttemptRecord,
    ReusedResults,
    RunEvent,
)
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError, spelling_hint
from bursar.model.task import Status
from bursar.runs.file_states import ABSENT, FileState, FileStates, file_state
from bursar.runs.folder import RunFolder, runs_of
from bursar.runs.reuse_store import (
    LOGS,
    RecordedResult,
    RecordedRun,
    output_path,
    read_recorded,
    write_definitions,
    write_results,
)
from bursar.runs.task_fingerprints import (
    Rerun,
    ReuseDecision,
    TaskDefinitions,
    count_reruns,
    decide_reuse,
    define,
    explain_reruns,
    files_of,
)
from bursar.sqlite_file import warn_on_stderr

_PER_EVENT = 1000


def define_campaign(campaign: Campaign, known: RecordedRun | None = None) -> TaskDefinitions:
    """
    Return the definitions of a campaign's tasks, by the files as they are now.

    Parameters
    ----------
    known
        Record of an earlier run from the same folder, which spares the reading of files that have
        not changed since; None: there is none.
    """
    workflow = campaign.workflow
    files = files_of(workflow)
    # Stamps hold an inode, which means something for one and the same file only.
    before = known.definitions if known is not None and known.root == campaign.root else None
    known_inputs, known_code = ({}, {}) if before is None else (before.inputs, before.code)
    inputs = FileStates(campaign.root, known_inputs, warn_on_stderr)
    code = FileStates(campaign.root, known_code, warn_on_stderr)
    names = {name for number in range(len(workflow.tasks)) for name in files.initial(number)}
    return define(
        workflow,
        files,
        {name: inputs.of(name) for name in sorted(names)},
        {name: code.of(name) for name in campaign.code},
    )


# The earlier run.


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """
    An earlier run with what it recorded.

    Parameters
    ----------
    records
        The last record of each task that has ended for good, by number.
    """

    folder: RunFolder
    recorded: RecordedRun
    records: Mapping[int, AttemptRecord] = field(repr=False)

    def obstacle(self, task: int) -> Rerun | None:
        """Return why the result of a task cannot be used; None: it is there, as recorded."""
        name, record = self.folder.name, self.records.get(task)
        if record is None:
            return Rerun("unsuccessful", f"no result in {name}")
        if record.outcome.status is not Status.SUCCEEDED:
            return Rerun("unsuccessful", f"{record.outcome.status} in {name}")
        result = self.recorded.results.get(task)
        if result is None:
            return Rerun("lost", f"{name} was killed before it had recorded the result")
        if result.problem:
            return Rerun("lost", f"{result.problem} in {name}")
        if result.fingerprint != self.recorded.definitions.fingerprints[task]:
            return Rerun("lost", f"{name} was made by another version")
        for output, state in result.outputs.items():
            found = file_state(output_path(self.folder, output), state)
            if found.digest != state.digest:
                fate = "is gone" if found.digest == ABSENT else "was changed"
                return Rerun("lost", f"{output} {fate} in {name}")
        return None


def find_run(base: Path, text: str) -> RunFolder:
    """
    Return the run that a user means: by name, by ``last``, by the begin of a name, or by path.

    Raises
    ------
    InputError
        When there is no such run, or there are several.
    """
    known = RunFolder.all(base)
    if not any((path / "run.json").is_file() for path in (base / text, Path(text))):
        if text == "last" and known:
            return known[-1]
        begun = [run for run in known if text and run.name.startswith(text)]
        if len(begun) > 1:
            names = [run.name for run in begun]
            raise InputError(
                f'"{text}" is the begin of {len(names)} runs: {", ".join(names[:3])}'
                + (", ..." if len(names) > 3 else ""),
                hint=spelling_hint(text, names),
            )
        if begun:
            return begun[0]
    return RunFolder.open(base, text)


def read_earlier(folder: RunFolder) -> EarlierRun | None:
    """
    Read an earlier run; None where it recorded nothing of what its results depend on.

    Raises
    ------
    InputError
        When its journal or its record is damaged.
    BursarError
        When part of it cannot be read.
    """
    campaign = folder.read_campaign()
    recorded = read_recorded(folder, campaign)
    if recorded is None:
        return None
    journal = read_journal(folder.journal_file)
    last = {r.outcome.task: r for r in journal.records if not r.is_outrun}
    records = {task: record for task, record in last.items() if record.final}
    return EarlierRun(folder=folder, recorded=recorded, records=records)


# What a campaign takes of it.


@dataclass(frozen=True, kw_only=True)
class CampaignReuse:
    """
    What a campaign takes from an earlier run.

    Parameters
    ----------
    definitions
        Definitions of the campaign's tasks.
    earlier
        The earlier run; None: there is none, so that all tasks run.
    decision
        Reused results, and why other tasks run.
    problem
        Why the latest run of the campaign cannot be read; empty: it can, or there is none.
    """

    definitions: TaskDefinitions
    earlier: EarlierRun | None = None
    decision: ReuseDecision = field(default_factory=lambda: ReuseDecision(reused={}, reruns={}))
    problem: str = ""

    @property
    def left(self) -> list[int]:
        """Numbers of the tasks that run, ascending."""
        reused = self.decision.reused
        return [i for i in range(len(self.definitions.workflow.tasks)) if i not in reused]

    @property
    def origin(self) -> tuple[str, int]:
        """Name of the earlier run and number of reused results; empty and 0: none are."""
        if self.earlier is None or not self.decision.reused:
            return "", 0
        return self.earlier.folder.name, len(self.decision.reused)

    def summary(self) -> str:
        """Return in one line what is reused and what runs; empty where there is no earlier run."""
        if self.earlier is None:
            return f"nothing is reused: {self.problem}" if self.problem else ""
        total, reused = len(self.definitions.workflow.tasks), len(self.decision.reused)
        some = "none" if not reused else str(reused)
        said = f"reused {some} of {total} results of {self.earlier.folder.name}"
        if reused == total:
            return f"{said}: nothing is left to run (--fresh reruns all)"
        why = count_reruns(self.decision)
        runs = "runs" if total - reused == 1 else "run"
        hint = "--explain says why for each, --fresh reruns all"
        return f"{said}; {total - reused} {runs}: {why} ({hint})"

    def explanation(self) -> list[str]:
        """Return for people why each task runs, a line for each reason."""
        if self.earlier is None:
            return ["no earlier run is reused: all tasks run"]
        return explain_reruns(self.decision, self.definitions.workflow.tasks)


def reuse_of(
    campaign: Campaign, base: Path, *, fresh: bool = False, reuse_from: str | None = None
) -> CampaignReuse:
    """
    Decide what a campaign takes from an earlier run.

    Parameters
    ----------
    base
        Folder that holds the runs.
    fresh
        Take nothing.
    reuse_from
        Name of the earlier run; None: the latest of the same campaign file.

    Raises
    ------
    InputError
        When there is no such run, or it is being carried out, or recorded nothing.
    """
    if fresh and reuse_from is not None:
        raise InputError("goes without --fresh", where="--reuse-from")
    if fresh:
        return CampaignReuse(definitions=define_campaign(campaign))
    problem = ""
    if reuse_from is None:
        # Not one that another process carries out now: its results are still coming.
        runs = (run for run in runs_of(base, campaign) if not is_written(run.journal_file))
        folder = next(runs, None)
        try:
            earlier = None if folder is None else read_earlier(folder)
        except BursarError as error:
            # The user did not ask for it by name: the campaign runs as if it were not there.
            earlier, problem = None, str(error)
    else:
        folder = find_run(base, reuse_from)
        if is_written(folder.journal_file):
            raise InputError(f"{folder.name} is being carried out", where="--reuse-from")
        earlier = read_earlier(folder)
        if earlier is None:
            raise InputError(
                f"{folder.name} has no record of what its results depend on", where="--reuse-from"
            )
    if earlier is None:
        return CampaignReuse(definitions=define_campaign(campaign), problem=problem)
    definitions = define_campaign(campaign, earlier.recorded)
    decision = decide_reuse(definitions, earlier.recorded.definitions, earlier.obstacle)
    return CampaignReuse(definitions=definitions, earlier=earlier, decision=decision)


# The results in a new run.


def take_over(folder: RunFolder, reuse: CampaignReuse, source_digest: str) -> None:
    """
    Put the reused results into the folder of a run that is being made.

    Files are given further names, or copied to another file system, so that the earlier run may be
    deleted afterwards.

    Raises
    ------
    BursarError
        When a file cannot be taken, or was changed since the decision.
    """
    write_definitions(folder, reuse.definitions, source_digest)
    earlier, reused = reuse.earlier, reuse.decision.reused
    if earlier is None or not reused:
        return
    records: list[AttemptRecord] = []
    results: dict[int, RecordedResult] = {}
    tasks = reuse.definitions.workflow.tasks
    old_tasks = earlier.recorded.definitions.workflow.tasks
    for number, task in reused.items():
        record, result = earlier.records[task], earlier.recorded.results[task]
        new = AttemptRecord(
            msgspec.structs.replace(record.outcome, task=number, attempt=1), True, "", REUSED_LEASE
        )
        stem = folder_name(number, tasks[number].id)
        outputs = {}
        for old, state in result.outputs.items():
            name = _renamed(old, stem)
            source, target = output_path(earlier.folder, old), output_path(folder, name)
            outputs[name] = _take(source, target, state)
        fingerprint = reuse.definitions.fingerprints[number]
        assert fingerprint is not None  # else it would not be reused
        records.append(new)
        results[number] = RecordedResult(fingerprint, outputs)
    write_results(folder, results)
    moment = time.time()
    taken = [(number, old_tasks[task].id) for number, task in reused.items()]
    said = f"reused {len(taken)} of {len(tasks)} results of {earlier.folder.name}"
    events = [RunEvent(moment, "message", said)]
    for i in range(0, len(taken), _PER_EVENT):
        text = ReusedResults(earlier.folder.name, taken[i : i + _PER_EVENT])
        events.append(RunEvent(moment, REUSED, msgspec.json.encode(text).decode()))
    journal = RunJournal(folder.journal_file)
    try:
        journal.commit(records, events=events)
    finally:
        journal.close()


def _renamed(name: str, stem: str) -> str:
    """Return the name of an output in the new run; files with long output are named by tasks."""
    if not name.startswith(LOGS):
        return name
    return f"{LOGS}{stem}.1.{name.rpartition('.')[2]}"


def _take(source: Path, target: Path, state: FileState) -> FileState:
    """Give a file or folder a further name; return its state there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        else:
            _link(str(source), str(target))
    except (OSError, shutil.Error) as error:
        raise BursarError(f"{source}: cannot be reused: {error}") from None
    found = file_state(target, state)
    if found.digest != state.digest:
        raise BursarError(f"{source}: was changed while it was to be reused; try again")
    return found


def _link(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    try:
        os.link(source, target, follow_symlinks=follow_symlinks)
    except OSError:  # another device, or no hard links here
        shutil.copy2(source, target, follow_symlinks=follow_symlinks)
    return target
