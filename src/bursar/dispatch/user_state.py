"""The folder for this user's state that outlives a run and belongs to no run folder."""

import os
from pathlib import Path


def state_folder() -> Path | None:
    """Return the folder, which may not exist yet; None where the user has no home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(state) if state else Path.home() / ".local" / "state"
    except RuntimeError:  # no home: a container knows its user by a number only
        return None
    return base / "bursar"
