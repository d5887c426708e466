"""Cancelling a run for good: nothing of it starts any more, and it cannot be resumed."""

import time

from bursar.dispatch.journal import RunJournal, read_journal
from bursar.dispatch.journal_records import RunEvent
from bursar.model.errors import BursarError, InputError
from bursar.runs.detached_runs import follow_run, stop_run
from bursar.runs.folder import RunFolder, RunState
from bursar.runs.incarnations import leases_of
from bursar.runs.run_record import effective_manifest

MESSAGE = "cancelled for good"
"""Text of the journalled event."""

OVER = ("finished",)
"""States of runs of which nothing is left that could begin again."""


def cancel_run(folder: RunFolder) -> RunState:
    """
    End a run for good, and return its state; a run that was cancelled before stays so.

    A run that a process carries out is stopped first: its tasks are asked to end, its processors
    and the money that is held go back. It may finish meanwhile, and is not cancelled then.

    Raises
    ------
    InputError
        When nothing is left to cancel, or the run's process is on another machine.
    BursarError
        When the run was killed and may still hold processors elsewhere; when its process cannot
        be asked to stop, or another one resumes it at this moment.
    """
    state = effective_manifest(folder).state
    if state == "cancelled":
        return state
    if state in OVER:
        raise InputError(f"run {folder.name} has ended: {state}")
    if state == "running":
        stop_run(folder)
        follow_run(folder, lambda update: None)
        state = effective_manifest(folder).state
        if state in OVER:
            return state
    elif folder.read_info().state == "running":  # its process was killed
        _check_nothing_is_held(folder)
        if folder.worker_contact.exists():
            stop_run(folder)
    # Also a lock: nobody resumes the run meanwhile.
    journal = RunJournal(folder.journal_file)
    try:
        info = folder.read_info()
        # The journal first: run.json alone could be changed by anybody without a trace.
        journal.commit(events=[RunEvent(time.time(), "message", MESSAGE)])
        info.state, info.finished = "cancelled", info.finished or time.time()
        folder.write_info(info)
    finally:
        journal.close()
    return "cancelled"


def _check_nothing_is_held(folder: RunFolder) -> None:
    """Refuse where a killed run has processors that only a resumed one gives back."""
    info = folder.read_info()
    local = {site.name for site in info.sites if site.kind == "local"}
    leases = leases_of(read_journal(folder.journal_file).events).values()
    held = sorted({one.site for one in leases if one.end is None and one.site not in local})
    if held:
        raise BursarError(
            f"the process of run {folder.name} was killed and may still hold processors at "
            f"{', '.join(held)}; go on with bursar run --resume {folder.name} --detach, which "
            "finds them, and cancel the run then"
        )
