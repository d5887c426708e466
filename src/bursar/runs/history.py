"""Queue wait history of earlier runs, kept for later ones."""

import contextlib
import os
import secrets
from pathlib import Path

import msgspec

from bursar.model.errors import InputError
from bursar.provisioning.wait_prediction import WaitPredictor

HISTORY = "waits.json"
"""File in the folder of the runs."""


def read_waits(folder: Path) -> WaitPredictor:
    """
    Read the waits that earlier runs of a folder have seen.

    Where the file is missing or damaged, the history begins anew.
    """
    try:
        return WaitPredictor.of_kept(msgspec.json.decode((folder / HISTORY).read_bytes()))
    except (OSError, msgspec.MsgspecError, InputError, AttributeError, TypeError):
        return WaitPredictor()


def write_waits(folder: Path, waits: WaitPredictor) -> None:
    """
    Write the waits; of runs that end at one time, the last one's are kept.

    The history is a help only: where the file cannot be written, the old one stays.
    """
    part = folder / f".{HISTORY}.{secrets.token_hex(4)}"
    try:
        part.write_bytes(msgspec.json.encode(waits.kept()))
        # In one step: another run may read it now.
        os.replace(part, folder / HISTORY)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
