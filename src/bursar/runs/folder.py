"""
The layout of a run's folder on disk, and the compiled campaign in it.

The compiled campaign has every task spelt out. A resumed run reads it and nothing else, so the
campaign file may have been edited, moved or deleted since.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Named, OutOfReach
from bursar.dispatch.folders import attempt_folder, folder_name, remove_tree, write_atomically
from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError, spelling_hint
from bursar.model.matching import Brokering
from bursar.model.money import Payer
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.worker.staging import RootNamespace, StagingError

# The compiled campaign of a run: every task spelt out, independent of the campaign file.

STORED_FORMAT = 3


class _StoredCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign beside the version of the format, which is known before the campaign is read."""

    format: int
    campaign: msgspec.Raw = msgspec.Raw()


def encode(campaign: Campaign) -> bytes:
    """Encode a campaign as bytes for :func:`decode`."""
    # Absolute: a run may be resumed from another folder.
    rooted = replace(campaign, root=campaign.root.resolve())
    raw = msgspec.Raw(msgspec.msgpack.encode(rooted, enc_hook=_path_as_text))
    return msgspec.msgpack.encode(_StoredCampaign(format=STORED_FORMAT, campaign=raw))


def decode(data: bytes) -> Campaign:
    """
    Decode a campaign from the bytes of :func:`encode`.

    Raises
    ------
    BursarError
        When the bytes are damaged or of another format.
    """
    try:
        stored = msgspec.msgpack.decode(data, type=_StoredCampaign)
        if stored.format != STORED_FORMAT:
            raise BursarError(
                f"the compiled campaign has format {stored.format}, "
                f"this version reads {STORED_FORMAT}"
            )
        return msgspec.msgpack.decode(stored.campaign, type=Campaign, dec_hook=_path_of_text)
    except msgspec.MsgspecError as error:
        raise BursarError(f"the compiled campaign is damaged: {error}") from error


def _path_as_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def _path_of_text(kind: type, value: Any) -> Path:
    if issubclass(kind, Path):
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} cannot be read")


# The layout of a run's folder on disk.

FORMAT = 1
"""Version of ``run.json``; runs of a newer format are refused."""

RunState = Literal[
    "new",
    "running",
    "finished",
    "probed",
    "interrupted",
    "budget-stopped",
    "goal-stopped",
    "failed",
    "unsettled",
    "cancelled",
]


class RunManifest(msgspec.Struct, kw_only=True):
    """
    The content of ``run.json``.

    Parameters
    ----------
    format
        Version of the file format.
    campaign
        Name of the campaign.
    created, finished
        Seconds since the epoch; ``finished`` is None while it may go on.
    state
        ``running`` beside a lock that is not held means that the runner was killed; ``unsettled``,
        that every task succeeded and a site has not said yet what its processors came to;
        ``probed``, that only the tasks of its probe ran.
    sites
        Facts of the sites it was planned over.
    strategy
        Strategy that brings its jobs to sites; None: a plan.
    out_of_reach
        With a strategy: what happens once not all jobs can be done.
    spare
        With a strategy: share of the time left that it keeps for jobs that take longer;
        absent: none.
    brokering
        How the resource broker brings its jobs to sites; None: it does not.
    dynamic
        Whether a pool acquires and releases its processors.
    payer
        The account that pays for it; None: its bill is in no book.
    oversubscribe
        Whether it never waits for processors of local sites that other runs hold.
    source
        Path of the campaign file; empty: the campaign came from no file.
    reused_from, reused
        Name of the earlier run of which results were taken, and how many; empty and 0: none.
    project
        Project by whose weight it shares this machine with other runs; empty: none.
    history
        File of the history that its tasks are added to, or ``none``; empty: the user's.
    part_of
        Number of tasks of the campaign of which some are measured here; 0: this is all of it.
    forecast
        The last forecast that was journalled; None: none.
    """

    format: int
    campaign: str
    created: float
    state: RunState
    tasks: int
    sites: list[SiteFacts]
    argv: list[str] = []
    strategy: Named | None = None
    out_of_reach: OutOfReach = "fit"
    spare: float | msgspec.UnsetType = msgspec.UNSET
    brokering: Brokering | None = None
    dynamic: bool = False
    payer: Payer | None = None
    oversubscribe: bool = False
    source: str = ""
    reused_from: str = ""
    reused: int = 0
    project: str = ""
    history: str = ""
    part_of: int = 0
    finished: float | None = None
    forecast: ForecastFan | None = None

    @property
    def policy(self) -> SupplyPolicy:
        """Policy that brings processors to the run's tasks."""
        if self.brokering is not None:
            return SupplyPolicy(kind="matched", brokering=self.brokering)
        if self.dynamic:
            return SupplyPolicy(kind="pool")
        if self.strategy is not None:
            return SupplyPolicy(
                kind="economy",
                strategy=self.strategy,
                out_of_reach=self.out_of_reach,
                spare=0.0 if self.spare is msgspec.UNSET else self.spare,
            )
        return SupplyPolicy()


class RunFolder:
    """
    A run's files by name.

    Parameters
    ----------
    path
        The folder; not checked here, see :meth:`open` and :meth:`create`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info_file = path / "run.json"
        self.compiled_file = path / "tasks.msgpack"
        self.plan_file = path / "plan.json"
        self.journal_file = path / "journal.sqlite"
        self.reuse_file = path / "reuse.sqlite"
        self.amendments_file = path / "amendments.jsonl"
        self.views_socket = path / "views.sock"
        self.runner_log = path / "runner.log"
        self.worker_contact = path / "workers.json"
        self.worker_log = path / "workers.log"
        self.files = path / "files"
        self.work = path / "work"
        self.logs = path / "logs"
        self.results_jsonl = path / "results.jsonl"
        self.results_csv = path / "results.csv"
        self.bill_file = path / "bill.json"
        self.report_file = path / "report.html"

        self.pilots = path / "pilots"

    @property
    def identity(self) -> str:
        """Identity of the folder among all folders; batch jobs of pilots are named by this."""
        # The path and not the name: runs of one name may lie below several folders of one user.
        return hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:10]

    @property
    def name(self) -> str:
        """Name of the run for the user: the name of the folder."""
        return self.path.name

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        base: Path,
        campaign: Campaign,
        sites: tuple[SiteFacts, ...],
        *,
        argv: list[str],
        name: str | None = None,
        policy: SupplyPolicy | None = None,
        payer: Payer | None = None,
        oversubscribe: bool = False,
        reused: tuple[str, int] = ("", 0),
        project: str = "",
        history: str = "",
        part_of: int = 0,
    ) -> "Iterator[RunFolder]":
        """
        Make the folder of a new run under ``base``, as a context for filling the folder.

        The folder becomes a run when the context is left; when that happens by an error, the
        folder is removed.

        Parameters
        ----------
        reused
            Name of the earlier run of which results are taken, and how many.
        history, part_of
            See :class:`RunManifest`.

        Raises
        ------
        InputError
            When the name is taken or cannot be a folder's.
        BursarError
            When the folder cannot be written.
        """
        policy = policy or SupplyPolicy()
        run = cls(base / (name or _fresh_name(campaign.name)))
        if name is not None and (not _SAFE.fullmatch(name) or name in {".", ".."}):
            raise InputError(f'a run is named by letters, digits, ".", "_" and "-", got "{name}"')
        # mkdir below would say so, too, but not what to do about it.
        if run.path.exists():
            raise InputError(f'run "{run.name}" exists already', hint="resume it, or choose a name")
        try:
            run.path.mkdir(parents=True)
        except OSError as error:
            raise BursarError(f"{run.path}: cannot make the run folder: {error.strerror}") from None
        try:
            for folder in (run.files, run.work, run.logs):
                folder.mkdir()
            run.write_campaign(campaign)
            yield run
            # Last: a folder without run.json is no run, so that one which was made only in part is
            # never found.
            run.write_info(
                RunManifest(
                    format=FORMAT,
                    campaign=campaign.name,
                    created=time.time(),
                    state="new",
                    tasks=len(campaign.workflow.tasks),
                    sites=list(sites),
                    argv=argv,
                    strategy=policy.strategy,
                    out_of_reach=policy.out_of_reach,
                    spare=policy.spare or msgspec.UNSET,
                    brokering=policy.brokering,
                    dynamic=policy.kind == "pool",
                    payer=payer,
                    oversubscribe=oversubscribe,
                    source=source_of(campaign),
                    reused_from=reused[0],
                    reused=reused[1],
                    project=project,
                    history=history,
                    part_of=part_of,
                )
            )
        except BaseException:
            # Also on Ctrl-C: the name must be free for the next try.
            shutil.rmtree(run.path, ignore_errors=True)
            raise

    @classmethod
    def open(cls, base: Path, name: str) -> "RunFolder":
        """
        Return a run under ``base``, or at a path.

        Parameters
        ----------
        name
            Name of the run or its begin, if no other run begins so; ``last`` is the run that was
            made last.

        Raises
        ------
        InputError
            When there is no such run, with the nearest name as a hint, or more than one.
        """
        for path in (base / name, Path(name)):
            if name and (path / "run.json").is_file():
                return cls(path.resolve())
        runs = cls.all(base)
        if name == "last" and runs:
            return cls(runs[-1].path.resolve())
        begun = [run for run in runs if name and run.name.startswith(name)]
        if len(begun) == 1:
            return cls(begun[0].path.resolve())
        if begun:
            raise InputError(
                f'{len(begun)} runs under {base} begin with "{name}"',
                hint=f"the last of them is {begun[-1].name}",
            )
        known = [run.name for run in runs]
        hint = spelling_hint(name, known) or (f"the last run is {known[-1]}" if known else None)
        raise InputError(f'no run "{name}" under {base}', hint=hint)

    @classmethod
    def all(cls, base: Path) -> list["RunFolder"]:
        """Every run under ``base``, the oldest first."""
        found = []
        for path in base.glob("*/run.json"):
            run = cls(path.parent)
            try:
                found.append((run.read_info().created, run.name, run))
            except BursarError:
                continue  # half-made or foreign: not a run one could open
        return [run for _, _, run in sorted(found, key=lambda item: item[:2])]

    def read_info(self) -> RunManifest:
        """
        Read ``run.json``.

        Raises
        ------
        BursarError
            When the file cannot be read, is damaged or of a newer format.
        """
        try:
            info = msgspec.json.decode(self.info_file.read_bytes(), type=RunManifest)
        except OSError as error:
            raise BursarError(f"{self.info_file}: cannot be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise BursarError(f"{self.info_file}: damaged: {error}") from None
        if info.format > FORMAT:
            raise BursarError(
                f"{self.info_file}: format {info.format} is newer than {FORMAT}, the newest known"
            )
        return info

    def write_info(self, info: RunManifest) -> None:
        """Replaces ``run.json`` in one step."""
        write_atomically(self.info_file, msgspec.json.format(msgspec.json.encode(info), indent=2))

    def write_campaign(self, campaign: Campaign) -> None:
        """Replaces the compiled campaign in one step."""
        write_atomically(self.compiled_file, encode(campaign))

    def read_campaign(self) -> Campaign:
        """
        Read the compiled campaign, with the present goal of the run.

        Raises
        ------
        BursarError
            When the file cannot be read.
        """
        try:
            return decode(self.compiled_file.read_bytes())
        except OSError as error:
            raise BursarError(f"{self.compiled_file}: cannot be read: {error.strerror}") from None


def source_of(campaign: Campaign) -> str:
    """Return the path of a campaign's file, by which its runs are found; empty: there is none."""
    return "" if campaign.source is None else os.path.realpath(campaign.source)


def runs_of(base: Path, campaign: Campaign) -> Iterator[RunFolder]:
    """Yield the runs of a campaign's file that recorded what results depend on, newest first."""
    source = source_of(campaign)
    for run in reversed(RunFolder.all(base) if source else []):
        if run.reuse_file.exists() and run.read_info().source == source:
            yield run


def record_budget(folder: RunFolder, info: RunManifest, budget: float | None) -> None:
    """Keep the total budget that a run's account user allows, for later incarnations."""
    if info.payer is not None:
        info.payer = msgspec.structs.replace(info.payer, budget=budget)
        folder.write_info(info)


def append_durably(path: Path, data: bytes) -> None:
    """
    Append to a file that only the owner may read, and wait until the data are on disk.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    try:
        # Appended in one write, so that lines of two writers do not mix.
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(target, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


_SAFE = re.compile(r"[A-Za-z0-9._-]+")


def _fresh_name(campaign: str) -> str:
    """Return a new name: campaign, local time and four random digits, so that names sort by age."""
    stem = "-".join(_SAFE.findall(campaign)) or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{stem[:40]}-{stamp}-{secrets.token_hex(2)}"


# The working directories of attempts: which of them stay when the run has ended.


def find_task(ids: Sequence[str], name: str, where: str) -> int:
    """
    Return the number of a task that a user names.

    Parameters
    ----------
    ids
        Ids of the tasks.
    name
        Id, the begin of one if no other task's id begins so, or the number of the task, from 0.
    where
        Place of the tasks, for the error.

    Raises
    ------
    InputError
        When there is no such task, or more than one.
    """
    if name in ids:
        return ids.index(name)
    if name.isascii() and name.isdecimal() and int(name) < len(ids):
        return int(name)
    begun = [number for number, one in enumerate(ids) if name and one.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise InputError(
            f'{len(begun)} tasks in {where} begin with "{name}"', hint=f"one is {ids[begun[0]]}"
        )
    raise InputError(f'no task "{name}" in {where}', hint=spelling_hint(name, ids))


class AttemptFolders:
    """
    Knows which working directories are of use after the end.

    Parameters
    ----------
    path
        Folder that holds the working directories.
    tasks
        Tasks of the run; the list may grow.
    """

    def __init__(self, path: Path, tasks: Sequence[Task]) -> None:
        self._path = path
        self._tasks = tasks
        self._failed: set[str] = set()
        self._succeeded: set[int] = set()

    def learn(self, outcome: Outcome) -> None:
        """Note how an attempt has ended."""
        if outcome.status is Status.SUCCEEDED:
            self._succeeded.add(outcome.task)
        elif outcome.status in (Status.FAILED, Status.TIMED_OUT):
            name = folder_name(outcome.task, self._tasks[outcome.task].id)
            self._failed.add(attempt_folder(name, outcome.attempt))

    def clear(self) -> None:
        """
        Remove what attempts that were cut off have left of tasks that have succeeded since.

        The working directory of an attempt that failed stays for inspection, and so does every
        one of a task without success.
        """
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                task = entry.name.partition("-")[0]
                # Not made by this run, or its task has had no success.
                if task.isdecimal() and int(task) not in self._succeeded:
                    continue
                # By name and not by age: an earlier incarnation may have made it.
                if entry.name not in self._failed:
                    remove_tree(entry.path)


def publish_outputs(run: RunFolder, folder: Path, names: Sequence[str]) -> str:
    """
    Publish outputs that a copy of a task has left in its working directory, and remove that.

    Returns
    -------
    str
        Why not all could be published; empty: they are among the run's files.
    """
    files = RootNamespace(str(run.path), os.path.abspath(run.files))
    try:
        for name in names:
            # Published before a kill that came before the success was recorded.
            if not os.path.lexists(folder / name) and os.path.lexists(run.files / name):
                continue
            files.publish(os.path.abspath(folder), name, stays=False)
    except (StagingError, OSError, ValueError) as error:
        return str(error)
    remove_tree(os.path.abspath(folder))
    return ""
