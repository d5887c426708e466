"""Old runs: which of them may be deleted, and deleting them."""

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.dispatch.journal import is_written
from bursar.model.errors import BursarError, InputError
from bursar.runs.folder import RunFolder

ENDED = ("finished", "failed", "probed", "cancelled")
"""States of runs that may be deleted unless others are asked for."""
NEVER = ("new", "running", "unsettled", "damaged")
"""States of runs that are never deleted: somebody may still carry them out, or owes money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRule:
    """
    Which runs a user wants to be rid of; every limit that is stated must hold.

    Parameters
    ----------
    names
        Names of the runs; empty: all.
    older
        Least age, seconds since the run was made; None: any.
    larger
        Least size on disk, bytes; None: any.
    states
        States of the runs.
    keep
        Number of the latest runs of each campaign that stay.
    """

    names: Collection[str] = ()
    older: float | None = None
    larger: int | None = None
    states: Collection[str] = ENDED
    keep: int = 0


def check_rule(rule: CleaningRule) -> None:
    """
    Refuse a rule that would delete what must stay, or says nothing.

    Raises
    ------
    InputError
        With what is wrong.
    """
    for state in rule.states:
        if state in NEVER:
            raise InputError(f"runs that are {state} are never deleted", where="--state")
    if not rule.names and rule.older is None and rule.larger is None and not rule.keep:
        raise InputError("name runs, or say which with --older, --larger or --keep")


def decide(
    rows: Sequence[Mapping[str, Any]], rule: CleaningRule, now: float
) -> list[tuple[str, str]]:
    """
    Decide which runs are deleted.

    Parameters
    ----------
    rows
        Of each run, the oldest first: ``run``, ``campaign``, ``state``, ``created``, ``size`` in
        bytes, ``tags``, ``used_by`` (names of
        runs that reuse its results and go on; those that have ended hold them themselves).
    now
        Seconds since the epoch.

    Returns
    -------
    list
        Name of each run that the rule names, and why it stays; empty: it is deleted.
    """
    latest: set[str] = set()
    if rule.keep:
        by_campaign: dict[str, list[str]] = {}
        for row in rows:
            by_campaign.setdefault(row["campaign"], []).append(row["run"])
        latest = {name for names in by_campaign.values() for name in names[-rule.keep :]}
    found = []
    for row in rows:
        name = row["run"]
        if rule.names and name not in rule.names:
            continue
        if row["state"] not in rule.states:
            if rule.names:
                found.append((name, f"is {row['state']}"))
            continue
        if rule.older is not None and now - row["created"] < rule.older:
            continue
        if rule.larger is not None and row["size"] < rule.larger:
            continue
        reason = ""
        if name in latest:
            reason = "is one of the latest"
        elif row["used_by"]:
            reason = f"is reused by {row['used_by'][-1]}"
        elif "keep" in row["tags"]:
            reason = "has the tag keep"
        found.append((name, reason))
    return found


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes on disk, files with several names once."""
    total, seen = 0, set()
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                state = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                total += state.st_blocks * 512
    return total


def delete_run(folder: RunFolder) -> None:
    """
    Delete a run, first so that it is no run any more, then its files.

    Raises
    ------
    BursarError
        When a process carries the run out, or files cannot be removed.
    """
    if is_written(folder.journal_file):
        raise BursarError(f"run {folder.name} is being carried out")
    # Renamed first: what is left of a deletion that was cut off is not taken for a run.
    doomed = folder.path.with_name(f".{folder.name}.deleted")
    try:
        folder.path.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise BursarError(f"{folder.path}: cannot be deleted: {error.strerror}") from None
