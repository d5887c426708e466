"""
Nimrod plan files, the old syntax and the new one, as campaigns.

Sources: the Nimrod Portal manual and the EnFuzion manual (old), the wiki and
the grammar of nimrodg (new). ``docs/reference/nimrod.md`` describes what is
read and what each command does here.
"""

from pathlib import Path

from bursar.formats.compressed import read_bytes
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.workflow import Workflow

__all__ = ["LARGEST_FILE", "read_plan_file"]

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes; a plan is written by a person."""


def read_plan_file(path: Path) -> Campaign:
    """
    Read the campaign that a plan file describes, every job spelt out.

    Parameters
    ----------
    path
        The file. Its folder is the campaign's root.

    Raises
    ------
    InputError
        At file, line and column: what was found and what was expected.
    """
    from bursar.formats.nimrod.expand import tasks_of
    from bursar.formats.nimrod.syntax import parse_plan

    path = Path(path)
    data = read_bytes(path, limit=LARGEST_FILE)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("is not a text in UTF-8", where=f"{path}:{line}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        if "\0" in text:
            line = text[: text.index("\0")].count("\n") + 1
            raise InputError("holds a NUL character", where=f"{line}:1")
        tasks = tasks_of(parse_plan(text), path.resolve().parent)
    except InputError as error:
        where = f"{path}:{error.where}" if error.where else str(path)
        raise InputError(error.message, where=where, hint=error.hint) from None
    return Campaign(
        name=path.stem, workflow=Workflow(tasks), root=path.resolve().parent, source=path
    )
