"""What a service refuses before it opens its doors."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar.service.config import SealingFiles
from bursar.service.config_toml import PREFIX, default_service
from bursar.service.runner import run_service


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


def test_a_sealing_key_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    """Workers of other accounts are told what is in it: nobody but the service need read it."""
    key = tmp_path / "key.pem"
    key.touch()
    key.chmod(0o644)
    config = replace(
        default_service({f"{PREFIX}SERVICE__FOLDER": str(tmp_path / "state")}),
        sealed=SealingFiles(certificate=key, key=key),
    )

    with pytest.raises(InputError, match="key of sealed tasks") as refused:
        asyncio.run(
            run_service(config, file=None, drain_seconds=0.0, on_start=lambda started: None)
        )

    assert refused.value.hint == f"chmod 600 {key}"
