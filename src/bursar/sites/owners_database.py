"""The SQLite file of the owners' book: its tables, and how it is opened."""

import contextlib
import os
import pwd
import socket
from pathlib import Path

from bursar.dispatch.folders import state_folder
from bursar.model.errors import InputError
from bursar.sites import processor_shares, shared_leases
from bursar.sqlite_file import (
    LockWaitingConnection,
    SqliteSchema,
)

VARIABLE = "BURSAR_OWNERS"
"""Environment variable that names the file; ``off`` shares nothing with other runs."""

FORMAT = "1"

LAYOUT = SqliteSchema(
    what="owners' book",
    key="owners",
    format=FORMAT,
    statements=(
        """CREATE TABLE holders (
            id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL,
            started INTEGER NOT NULL, run TEXT NOT NULL, mark TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE held (
            site TEXT NOT NULL, holder TEXT NOT NULL, name TEXT NOT NULL,
            processors INTEGER NOT NULL, since REAL NOT NULL,
            PRIMARY KEY (site, holder, name)) WITHOUT ROWID""",
        """CREATE TABLE waiting (
            number INTEGER PRIMARY KEY AUTOINCREMENT, site TEXT NOT NULL, holder TEXT NOT NULL,
            name TEXT NOT NULL, since REAL NOT NULL, UNIQUE (site, holder, name))""",
        """CREATE TABLE agreements (
            site TEXT NOT NULL, holder TEXT NOT NULL, id TEXT NOT NULL,
            processors INTEGER NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL,
            PRIMARY KEY (site, holder, id)) WITHOUT ROWID""",
        """CREATE TABLE owners (
            site TEXT PRIMARY KEY, factor REAL NOT NULL, period INTEGER) WITHOUT ROWID""",
        """CREATE TABLE payments (
            site TEXT NOT NULL, run TEXT NOT NULL, customer TEXT NOT NULL, amount INTEGER NOT NULL,
            PRIMARY KEY (site, run, customer)) WITHOUT ROWID""",
    ),
)


def owners_file() -> Path | None:
    """Return the file that the environment names, or the user's own; None shares nothing."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    if named:
        return Path(named).absolute()
    folder = state_folder()
    # A file for each machine: the user's folder may be on a file system that many share.
    return None if folder is None else folder / f"owners-{socket.gethostname()}.sqlite"


def is_named() -> bool:
    """Return whether the environment names the file: then it has to be usable."""
    return bool(os.environ.get(VARIABLE))


def user_name() -> str:
    """Return the user's name, by which owners know the customer."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container knows numbers only
        return f"user {os.getuid()}"


def open_owners(path: Path) -> LockWaitingConnection:
    """
    Open the file for writing, and make it if it is missing.

    Raises
    ------
    InputError
        When the file cannot be written, or is another program's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # Whoever may write in the folder may share the file; SQLite's other files follow it.
            os.fchmod(made, 0o600 | (path.parent.stat().st_mode & 0o066))
            os.close(made)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            hint=f"name another file in {VARIABLE}, or off",
        ) from None
    # A kill loses nothing; a power cut ends all runs.
    return LAYOUT.open(path, "NORMAL", _make_further_tables)


def _make_further_tables(db: LockWaitingConnection) -> None:
    # Apart from the format: a file of an earlier version has no such tables, and that version
    # needs none.
    processor_shares.make_table(db)
    for table in shared_leases.TABLES:
        db.execute(table)
