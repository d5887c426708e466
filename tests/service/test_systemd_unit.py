"""The unit of the guide, as far as it can be tried without systemd."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "service.md"


def units() -> dict[str, str]:
    """Files of systemd's in the guide: by their paths below its folder of units."""
    blocks = re.findall(
        r"^```ini\n# /etc/systemd/system/(\S+)\n(.*?)^```", GUIDE.read_text(), re.M | re.S
    )
    return dict(blocks)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("as_root", [False, True])
def test_systemd_knows_all_that_the_unit_says(tmp_path: Path, as_root: bool) -> None:
    """No option is misspelt or misplaced, in the unit or in what makes it root's."""
    said = units()
    assert set(said) == {"bursar.service", "bursar.service.d/override.conf"}
    for name, text in said.items():
        if name.endswith(".conf") and not as_root:
            continue
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("/opt/bursar/bin/bursar", sys.executable))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "bursar.service")],
        capture_output=True,
        text=True,
        check=False,
    )

    words = f"{done.stdout}{done.stderr}"
    assert not [line for line in words.splitlines() if "bursar" in line], words
