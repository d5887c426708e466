"""Turn a scheduler's complaints into errors that say what to change."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.command_runner import CommandResult


@dataclass(frozen=True, slots=True)
class KnownComplaint:
    """
    A known error message of a scheduler.

    Parameters
    ----------
    words
        Pattern of the message; case does not matter.
    hint
        Hint on what the user should change; empty: only waiting helps.
    transient
        Whether the same command may succeed later.
    """

    words: str
    hint: str = ""
    transient: bool = False


def command_error(doing: str, answer: CommandResult, known: Iterable[KnownComplaint]) -> SiteError:
    """
    The error of a command that failed, in the scheduler's own words.

    Words that none of those known is found in are for people, and for good.

    Parameters
    ----------
    doing
        Program, or what was tried.
    answer
        Result of the command.
    known
        The first that is found counts.
    """
    output = f"{answer.stderr}\n{answer.stdout}"
    for complaint in known:
        if re.search(complaint.words, output, re.IGNORECASE):
            hint = f"; {complaint.hint}" if complaint.hint else ""
            return SiteError(f"{doing}: {answer.words}{hint}", transient=complaint.transient)
    return SiteError(f"{doing}: {answer.words}")


def unreadable_output_error(doing: str, output: str) -> SiteError:
    """The error of a command that succeeded, but whose answer cannot be read."""
    start = " ".join(output.split())[:120]
    return SiteError(f"{doing} printed what cannot be read: {start!r}", transient=True)


def check_cancelled(
    what: str, answer: CommandResult, gone: str, complaints: Iterable[KnownComplaint]
) -> None:
    """
    Check the answer to a cancellation; jobs that have ended already are no error.

    Parameters
    ----------
    what
        Command that was to end the jobs.
    gone
        Pattern of a line that says that a job is gone, whatever its case.

    Raises
    ------
    SiteError
        When the scheduler says why some jobs do not end.
    """
    bad = [
        line
        for line in answer.stderr.splitlines()
        if line.strip() and not re.search(gone, line, re.IGNORECASE)
    ]
    if answer.status != 0 and bad:
        raise command_error(what, CommandResult(answer.status, "", "\n".join(bad)), complaints)
