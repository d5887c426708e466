"""Tags and a note of a run, which its user may change at any time, also while the run goes on."""

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.model.errors import BursarError, InputError

FILE = "labels.json"
"""In the run's folder, beside ``run.json``, which the process that carries the run out writes."""
_TAG = re.compile(r"[\w.:=+-]{1,64}").fullmatch
LONGEST_NOTE = 2000
"""Characters that a note may have."""


class RunLabels(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a user remembers of a run.

    Parameters
    ----------
    tags
        In alphabetical order.
    note
        Text; empty: none.
    """

    tags: list[str] = []
    note: str = ""


def read_labels(run: Path) -> RunLabels:
    """
    Read the labels of the run in a folder; none are there before any are given.

    Raises
    ------
    BursarError
        When the file cannot be read.
    """
    path = run / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunLabels)
    except FileNotFoundError:
        return RunLabels()
    except (OSError, msgspec.MsgspecError) as error:
        raise BursarError(f"{path}: cannot be read: {error}") from None


def change_labels(
    run: Path, *, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None
) -> RunLabels:
    """
    Change the labels of the run in a folder, and return those that are kept then.

    Parameters
    ----------
    note
        Takes the place of the note; None: the note stays.

    Raises
    ------
    InputError
        When a tag is no word, a tag to remove is not there, or the note is too long.
    BursarError
        When the file cannot be written.
    """
    labels = read_labels(run)
    for tag in add:
        if not _TAG(tag):
            raise InputError(f'a tag is a word of letters, digits and ._:=+-, got "{tag}"')
    for tag in remove:
        if tag not in labels.tags:
            raise InputError(f'the run has no tag "{tag}"')
    if note is not None and len(note) > LONGEST_NOTE:
        raise InputError(f"a note has at most {LONGEST_NOTE} characters, got {len(note)}")
    changed = RunLabels(
        tags=sorted((set(labels.tags) | set(add)) - set(remove)),
        note=labels.note if note is None else note,
    )
    if changed != labels:
        text = msgspec.json.format(msgspec.json.encode(changed), indent=2)
        write_atomically(run / FILE, text)
    return changed
