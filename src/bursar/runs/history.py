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
    The waits that runs of a folder have seen.

    One that cannot be read is no history: it begins anew.
    """
    try:
        return WaitPredictor.of_kept(msgspec.json.decode((folder / HISTORY).read_bytes()))
    except (OSError, msgspec.MsgspecError, InputError, AttributeError, TypeError):
        return WaitPredictor()


def write_waits(folder: Path, waits: WaitPredictor) -> None:
    """
    Keeps them; of runs that end at one time, what the last has learned.

    Nothing hangs on it: where it cannot be written, it is left.
    """
    part = folder / f".{HISTORY}.{secrets.token_hex(4)}"
    try:
        part.write_bytes(msgspec.json.encode(waits.kept()))
        os.replace(part, folder / HISTORY)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
