"""Where a user's history is, and with which settings it is opened."""

import os
from pathlib import Path

from bursar.dispatch.folders import state_folder
from bursar.formats.projects_toml import history_settings
from bursar.history.store import History
from bursar.history.writing import HistoryRules
from bursar.model.errors import BursarError
from bursar.sqlite_file import warn_on_stderr

VARIABLE = "BURSAR_HISTORY"
"""Environment variable that names another file, or ``none``."""

NOWHERE = "none"
"""In place of a file: no history is kept or read."""

PATIENCE = 10.0
"""Seconds for which a run waits while another process locks the history."""

NOT_ADDED = "what ran is not added to the history: {}"
"""Line for people where a history cannot be written."""


def history_file(chosen: str = "") -> Path | None:
    """
    Return the file of the user's history; None: none is kept.

    Parameters
    ----------
    chosen
        File that was asked for, or ``"none"``; empty: as the environment variable
        :data:`VARIABLE` says, else ``history.sqlite`` in the folder of the user's state.
    """
    chosen = chosen or os.environ.get(VARIABLE, "")
    if chosen == NOWHERE:
        return None
    if chosen:
        return Path(chosen).expanduser().absolute()
    folder = state_folder()
    return None if folder is None else folder / "history.sqlite"


def stated_history(chosen: str | Path | None) -> str:
    """Return a history that was asked for as a run keeps it, independent of its folder."""
    if chosen is None or str(chosen) in ("", NOWHERE):
        return str(chosen or "")
    return str(Path(chosen).expanduser().absolute())


def open_history(chosen: str = "", *, patience: float | None = None) -> History | None:
    """
    Return the user's history, with the user's settings; None: none is kept.

    Parameters
    ----------
    chosen
        See :func:`history_file`.
    patience
        Seconds to wait while another process locks the file; None: as for other files.

    Raises
    ------
    InputError
        When the settings are wrong.
    """
    path = history_file(chosen)
    if path is None:
        return None
    settings = history_settings()
    rules = HistoryRules(
        rows=settings.keep, days=settings.keep_days, hashes=settings.parameters == "hash"
    )
    return History(path, rules=rules, patience=patience)


def history_to_write(chosen: str) -> History | None:
    """
    Return the history that tasks are added to; None, with a line where need be: none.

    Parameters
    ----------
    chosen
        See :func:`history_file`.
    """
    try:
        return open_history(chosen, patience=PATIENCE)
    except BursarError as error:
        # Settings that cannot be read may ask for digests in place of parameters.
        warn_on_stderr(NOT_ADDED.format(error))
        return None
