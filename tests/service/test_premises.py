"""What a service refuses before it opens its doors."""

import asyncio
import os
from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar.service.config_toml import PREFIX, default_service
from bursar.service.premises import run_service


@pytest.mark.parametrize(
    "owner",
    [
        None,
        pytest.param(
            65534,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away"),
        ),
    ],
)
def test_a_folder_that_others_rule_is_no_place_to_keep_secrets(
    tmp_path: Path, owner: int | None
) -> None:
    """They may have put links there, or take away what is there; it stays as it was."""
    folder = tmp_path / "state"
    folder.mkdir()
    if owner is None:
        folder.chmod(0o777)
    else:
        os.chown(folder, owner, owner)
    mode = folder.stat().st_mode
    config = default_service({f"{PREFIX}SERVICE__FOLDER": str(folder)})

    with pytest.raises(InputError, match="a folder of the service's own"):
        asyncio.run(
            run_service(config, file=None, drain_seconds=0.0, on_start=lambda started: None)
        )

    assert folder.stat().st_mode == mode
    assert list(folder.iterdir()) == []
