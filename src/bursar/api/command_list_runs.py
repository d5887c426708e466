"""Lists of commands carried out as runs: each job's output printed and logged as it ends."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bursar.api.run_result import RunResult
from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.command_lists.command_campaign import ListedCommand
from bursar.formats.command_lists.halting import HaltRule
from bursar.formats.command_lists.job_log import HEADER, LoggedJob
from bursar.model.errors import BursarError, InputError
from bursar.model.task import Status
from bursar.report.job_output import JobPrinter, PrintedJob
from bursar.runs.environment import StopOrder
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import log_files


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRules:
    """
    What becomes of jobs' output.

    Parameters
    ----------
    joblog
        File for a line of each job that ends; None: none.
    appends
        Whether lines come after those that are there.
    keep_order
        Whether output comes in the order of the commands, and not as they end.
    tag
        Whether each line begins with the command's values.
    """

    joblog: Path | None = None
    appends: bool = False
    keep_order: bool = False
    tag: bool = False


class JobListener:
    """
    Hears of each job's end: passes it to the printer, and decides whether the list stops.

    Parameters
    ----------
    commands
        Commands, in the order of the run's tasks.
    """

    def __init__(
        self,
        commands: Sequence[ListedCommand],
        rule: HaltRule,
        printer: JobPrinter,
        *,
        tags: bool,
    ) -> None:
        self._commands, self._rule, self._printer, self._tags = commands, rule, printer, tags
        self.failed = self.succeeded = 0
        self.halted = ""
        self.sites: dict[str, str] = {}

    @property
    def may_stop(self) -> bool:
        """Whether the rule may stop the list."""
        return self._rule.moment is not None

    def heard(self, folder: RunFolder, record: AttemptRecord) -> StopOrder | None:
        """Take in an attempt; see :class:`bursar.runs.environment.RecordListener`."""

        outcome = record.outcome
        if not record.final or outcome.status is Status.CANCELLED or outcome.start == 0:
            return None
        command = self._commands[outcome.task]
        stdout, stderr = log_files(folder, outcome.task, str(command.number), record)
        job = _logged(command, record, self.sites.get(record.site) == "local")
        own = outcome.status is Status.SUCCEEDED or (
            outcome.status is Status.FAILED and bool(outcome.exit_code)
        )
        self._printer.take_in(
            PrintedJob(
                logged=job,
                stdout=outcome.stdout if stdout is None else stdout,
                stderr=outcome.stderr if stderr is None else stderr,
                tag=" ".join(str(v) for v in command.parameters.values()) if self._tags else "",
                note="" if own else f"bursar map: job {job.number}: {outcome.reason}",
            )
        )
        if job.succeeded:
            self.succeeded += 1
        else:
            self.failed += 1
        if self._printer.error is not None:
            return StopOrder(f"cannot write: {self._printer.error.strerror}", at_once=True)
        total = len(self._commands)
        if not self.halted and self._rule.reached(
            failed=self.failed, succeeded=self.succeeded, total=total
        ):
            how = "succeeded" if job.succeeded else "failed"
            self.halted = f"job {job.number} {how}: {command.line}"
            return StopOrder(self.halted, at_once=self._rule.moment == "now")
        return None


def _logged(command: ListedCommand, record: AttemptRecord, is_here: bool) -> LoggedJob:

    outcome = record.outcome
    code = outcome.exit_code
    if outcome.status is Status.SUCCEEDED:
        exit_value, signal = 0, 0
    elif outcome.status is Status.TIMED_OUT:
        exit_value, signal = -1, 15
    elif code is None or code == 0:
        exit_value, signal = 255, 0
    else:
        exit_value, signal = (code, 0) if code > 0 else (0, -code)
    return LoggedJob(
        number=command.number,
        host=":" if is_here else record.site,
        start=outcome.start,
        seconds=outcome.end - outcome.start,
        received=max(outcome.stdout_size, len(outcome.stdout)),
        exit_value=exit_value,
        signal=signal,
        command=command.line,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOutcome:
    """
    How a list of commands ended.

    Parameters
    ----------
    failed
        Number of jobs that failed.
    halted
        What stopped it by its rule, in one line; empty: nothing did.
    """

    result: RunResult
    failed: int
    halted: str


def carry_out_commands(
    commands: Sequence[ListedCommand],
    rule: HaltRule,
    output: OutputRules,
    streams: tuple[BinaryIO, BinaryIO],
    start: Callable[[JobListener], RunResult],
) -> ListOutcome:
    """
    Run commands, and print what each prints once it has ended.

    Parameters
    ----------
    streams
        Where standard output and standard error of jobs go.
    start
        Runs the campaign of the commands with a listener.

    Raises
    ------
    InputError
        When the job log cannot be written.
    BursarError
        When the output cannot; what had ended is kept. Also what ``start`` raises.
    """
    with ExitStack() as files:
        log: Any = None
        if output.joblog is not None:
            try:
                mode = "a" if output.appends else "w"
                log = files.enter_context(output.joblog.open(mode, encoding="utf-8"))
                if not output.appends:
                    log.write(HEADER)
                    log.flush()
            except OSError as error:
                raise InputError(str(error.strerror), where=str(output.joblog)) from None
        order = [one.number for one in commands] if output.keep_order else None
        printer = JobPrinter(*streams, log, order)
        listener = JobListener(commands, rule, printer, tags=output.tag)
        try:
            result = start(listener)
        finally:
            printer.close()
    if printer.error is not None:
        raise BursarError(f"the output cannot be written: {printer.error.strerror}")
    return ListOutcome(result=result, failed=listener.failed, halted=listener.halted)
