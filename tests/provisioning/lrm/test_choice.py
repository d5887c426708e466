"""The adapter of each manager that a site may name."""

import subprocess
import sys
from typing import get_args

import pytest

from bursar.model.provisioning import BatchScheduler, Manager
from bursar.provisioning.lrm import manager_of


@pytest.mark.parametrize("name", get_args(Manager))
def test_each_manager_has_its_adapter(name: Manager) -> None:
    """With every method of the interface, and without asking anybody anything."""
    manager = manager_of(BatchScheduler(manager=name))
    assert type(manager).__module__.split(".")[3] == name
    for method in ("submit", "cancel", "poll", "queue", "expected_start", "reserve", "usage"):
        assert callable(getattr(manager, method))
    assert manager.abilities.begin


def test_other_adapters_are_not_imported() -> None:
    """A site costs the import of its own manager only."""
    code = (
        "import sys\n"
        "from bursar.model.provisioning import BatchScheduler\n"
        "from bursar.provisioning.lrm import manager_of\n"
        "manager_of(BatchScheduler(manager='lsf'))\n"
        "print([n for n in ('slurm', 'gridengine', 'pbs', 'flux')"
        " if f'bursar.provisioning.lrm.{n}' in sys.modules])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
