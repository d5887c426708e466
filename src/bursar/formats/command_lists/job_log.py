"""Job logs in the format of GNU parallel: a line of nine columns for each job that has ended."""

from dataclasses import dataclass

from bursar.model.errors import InputError

HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
"""First line of a job log."""

_COLUMNS = HEADER.count("\t") + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """
    A job that has ended.

    Parameters
    ----------
    number
        Number of the job, from 1.
    host
        Site where it ran; ``:`` for this machine.
    start, seconds
        Seconds since the epoch, and how long it took.
    received
        Bytes that it printed on standard output.
    exit_value, signal
        Exit status, and number of the signal that ended it, or 0.
    command
        The command that ran.
    """

    number: int
    host: str
    start: float
    seconds: float
    received: int
    exit_value: int
    signal: int
    command: str

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.exit_value == 0 and self.signal == 0

    def line(self) -> str:
        """Return the job's line."""
        command = self.command.replace("\n", "\\n")
        return (
            f"{self.number}\t{self.host}\t{self.start:.3f}\t{self.seconds:10.3f}\t0\t"
            f"{self.received}\t{self.exit_value}\t{self.signal}\t{command}\n"
        )


def read_job_log(text: str, place: str) -> dict[int, LoggedJob]:
    """
    Return the last line of each job, by its number; a last line without an end does not count.

    Raises
    ------
    InputError
        Naming the line that is none of a job log.
    """
    found: dict[int, LoggedJob] = {}
    # The text behind the last end of a line was written in part when its program was killed.
    head, *lines = text.split("\n")
    names = HEADER.rstrip("\n").split("\t")
    if (text or lines) and head.split("\t") != names:
        raise InputError(
            f"is no job log: expected the columns {' '.join(names)}, with tabs between",
            where=f"{place}:1",
        )
    for number, line in enumerate(lines[:-1], start=2):
        columns = line.split("\t", _COLUMNS - 1)
        if len(columns) != _COLUMNS:
            raise InputError(
                f"expected {_COLUMNS} columns, got {len(columns)}", where=f"{place}:{number}"
            )
        seq, host, start, seconds, _, received, exit_value, signal, command = columns
        try:
            job = LoggedJob(
                number=int(seq),
                host=host,
                start=float(start),
                seconds=float(seconds),
                received=int(received),
                exit_value=int(exit_value),
                signal=int(signal),
                command=command,
            )
        except ValueError:
            raise InputError(
                "expected numbers in the columns Seq, Starttime, JobRuntime, Receive, Exitval and "
                f'Signal, got "{line[:60]}"',
                where=f"{place}:{number}",
            ) from None
        found[job.number] = job
    return found
